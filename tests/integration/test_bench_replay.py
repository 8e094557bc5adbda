# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The replay client against a real local server that speaks enough of the OpenAI API.

The server does what a request's task type says: answer, reject, fail in the ways servers fail, or hang.
"""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from aiohttp import web

from vllm_goodput.bench import ReplayOptions, build_result, replay
from vllm_goodput.bench.endpoint import preflight, server_notes
from vllm_goodput.bench.row import TraceRow
from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import SLO


class FakeServer:
    """An OpenAI-compatible server whose behaviour each request's task type selects."""

    def __init__(self):
        self.bodies = []
        self.headers = []
        self.paths = []
        self.cancelled = 0
        self.release = asyncio.Event()
        self.arrived = asyncio.Event()
        self.models = ["fake"]
        self.models_status = 200
        self.pool = None

    async def __aenter__(self):
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/goodput/v1/notes", self._pool)
        app.router.add_post("/v1/completions", self._serve)
        app.router.add_post("/v1/chat/completions", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.release.set()
        await self._runner.cleanup()

    async def _models(self, request):
        data = {"data": [{"id": name} for name in self.models]}
        return web.json_response(data, status=self.models_status)

    async def _pool(self, request):
        return web.Response(status=404) if self.pool is None else web.json_response(self.pool)

    async def _serve(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers.copy())
        self.paths.append(request.path)
        self.arrived.set()
        behaviour = request.headers.get("x-goodput-task", "ok")
        try:
            return await self._behave(request, body, behaviour)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _behave(self, request, body, behaviour):
        if behaviour in ("infeasible", "saturated"):
            status = 422 if behaviour == "infeasible" else 429
            error = {"error": {"message": "cannot be met", "code": behaviour}}
            headers = {"x-goodput-reject-reason": behaviour}
            return web.json_response(error, status=status, headers=headers)
        if behaviour == "vocabulary":
            error = {"error": {"message": "Token id 994 is out of vocabulary"}}
            return web.json_response(error, status=400)
        if behaviour == "http500":
            return web.Response(status=500, text="boom")
        if behaviour == "hang":
            await self.release.wait()
        if behaviour == "release":
            self.release.set()
        headers = {"x-goodput-instance": "i0", "x-goodput-predicted-e2el-ms": "123.5"}
        if not body["stream"]:
            return self._whole(body, behaviour, headers)
        return await self._stream(request, body, behaviour, headers)

    def _whole(self, body, behaviour, headers):
        if behaviour == "garbage":
            return web.Response(text="not json")
        answer = {"choices": [{"text": "x"}], "usage": usage(body)}
        return web.json_response(answer, headers=headers | {"x-goodput-migrations": "1"})

    async def _stream(self, request, body, behaviour, headers):
        headers = headers | {"Content-Type": "text/event-stream"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(b": ping\n\n")
        if behaviour == "no_token":
            await response.write(b"data: [DONE]\n\n")
            return response
        if behaviour == "role_then_hang":
            await response.write(
                event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            )
            await self.release.wait()
        tokens = body["max_tokens"] - (behaviour == "short")
        for i in range(tokens):
            if i == 1 and behaviour in ("error_event", "drop", "garbage", "no_done", "hang_midway"):
                return await self._break(request, response, behaviour)
            await response.write(event({"choices": [{"text": f"t{i}"}]}))
        if behaviour == "abort":
            await response.write(event({"choices": [{"text": "", "finish_reason": "abort"}]}))
        if behaviour != "no_usage":
            await response.write(event({"choices": [], "usage": usage(body, tokens)}))
        await response.write(b"data: [DONE]\n\n: x-goodput-migrations: 2\n\n")
        if behaviour == "stays_open":
            await self.release.wait()
        return response

    async def _break(self, request, response, behaviour):
        if behaviour == "error_event":
            await response.write(event({"error": {"message": "engine died"}}))
            await response.write(b"data: [DONE]\n\n")
        elif behaviour == "garbage":
            await response.write(b"data: {oops\n\ndata: [DONE]\n\n")
        elif behaviour == "drop":
            request.transport.close()
        elif behaviour == "hang_midway":
            await self.release.wait()
        return response


def event(data):
    return f"data: {json.dumps(data)}\n\n".encode()


def usage(body, tokens=None):
    prompt = len(body.get("prompt") or "")
    return {"prompt_tokens": prompt, "completion_tokens": tokens or body["max_tokens"]}


def row(task="ok", arrival_s=0.0, **fields):
    values = {"prompt_len": 8, "output_len": 4, "slo": SLO(e2el_ms=60_000)}
    return TraceRow(arrival_s=arrival_s, task=task, **(values | fields))


@pytest.fixture
async def server():
    async with FakeServer() as fake:
        yield fake


async def one(server, behaviour, *, stream=True, **options):
    options = {"timeout_s": 5.0} | options
    settings = ReplayOptions(url=server.url, stream=stream, **options)
    (record,) = await replay([row(behaviour)], settings)
    return record


async def test_streamed_answer(server):
    record = await one(server, "ok")
    assert record.outcome == "met"
    assert record.error is None
    assert (record.prompt_len, record.output_tokens, record.status) == (8, 4, 200)
    assert 0 < record.ttft_s <= record.e2el_s
    assert record.tpot_s == pytest.approx((record.e2el_s - record.ttft_s) / 3)
    assert len(record.itl_s) == 3
    assert (record.instance, record.predicted_e2el_ms, record.migrations) == ("i0", 123.5, 2)


async def test_whole_answer(server):
    record = await one(server, "ok", stream=False)
    assert record.outcome == "met"
    assert record.ttft_s == pytest.approx(record.e2el_s, abs=1e-3)
    assert record.tpot_s is None
    assert (record.output_tokens, record.migrations) == (4, 1)


async def test_chat(server):
    record = await one(server, "ok", endpoint="chat")
    assert record.outcome == "met"
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies[0]["messages"][0]["role"] == "user"


async def test_tokens_are_counted_where_usage_is_missing(server):
    assert (await one(server, "no_usage")).output_tokens == 4


async def test_role_chunk_is_no_token(server):
    record = await one(server, "role_then_hang", endpoint="chat", timeout_s=0.3)
    assert record.outcome == "failed"
    assert record.ttft_s is None


async def test_stream_that_stays_open_after_done_is_complete(server):
    record = await one(server, "stays_open")
    assert record.outcome == "met"
    assert record.e2el_s < record.finished_s + 1e-9
    assert record.migrations == 2


@pytest.mark.parametrize(("reason", "status"), [("infeasible", 422), ("saturated", 429)])
async def test_rejection(server, reason, status):
    record = await one(server, reason)
    assert (record.outcome, record.reject_reason, record.status) == ("rejected", reason, status)
    assert record.error == f"HTTP {status}: cannot be met"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("http500", "HTTP 500: boom"),
        ("error_event", "error in the answer: engine died"),
        ("garbage", "not JSON in the stream"),
        ("no_done", "ended without [DONE]"),
        ("no_token", "no token"),
        ("abort", "finish_reason abort"),
        ("drop", "ClientPayloadError"),
        ("hang", "no whole answer within 0.3 s"),
        ("hang_midway", "no whole answer within 0.3 s"),
    ],
)
async def test_failures(server, behaviour, message):
    timeout_s = 0.3 if "hang" in behaviour else 5.0
    record = await one(server, behaviour, timeout_s=timeout_s)
    assert record.outcome == "failed"
    assert message in record.error
    assert record.e2el_s is None


@pytest.mark.parametrize(("behaviour", "message"), [("garbage", "not JSON"), ("http500", "boom")])
async def test_failures_of_whole_answers(server, behaviour, message):
    record = await one(server, behaviour, stream=False)
    assert record.outcome == "failed"
    assert message in record.error


async def test_open_loop(server):
    """The first request hangs until the last one arrives: a closed loop would never send that."""
    rows = [row("hang"), row("ok", 0.02), row("release", 0.05)]
    records = await replay(rows, ReplayOptions(url=server.url, timeout_s=8))
    assert [record.outcome for record in records] == ["met"] * 3
    assert records[0].finished_s > records[1].finished_s


async def test_what_is_sent(server):
    rows = [row("a", session="s1", slo=SLO(ttft_ms=5)), row("b", 0.01)]
    options = ReplayOptions(
        url=server.url + "/v1/", api_key="key", headers={"X-Extra": "e"}, extra_body={"top_k": 3}
    )
    await replay(rows, options)
    first, second = server.headers
    assert first["x-slo-ttft-ms"] == "5.0"
    assert first["x-session-id"] == "s1"
    assert first["Authorization"] == "Bearer key"
    assert first["X-Extra"] == "e"
    assert first["x-request-id"] != second["x-request-id"]
    assert server.bodies[0]["model"] == "fake"
    assert server.bodies[0]["top_k"] == 3
    assert len(server.bodies[0]["prompt"]) == 8


async def test_many_at_once(server):
    rows = [row(arrival_s=i / 1000) for i in range(300)]
    records = await replay(rows, ReplayOptions(url=server.url))
    assert [record.index for record in records] == list(range(300))
    result = build_result(records, 0.3)
    assert (result["met"], result["failed"]) == (300, 0)
    assert len({body["prompt"][0] for body in server.bodies}) > 50


async def test_short_answer_is_reported(server):
    records = await replay([row("short")], ReplayOptions(url=server.url))
    assert build_result(records, 1.0, exact_lengths=True)["warnings"] == [
        "1 answers are shorter than asked for"
    ]


async def test_stop_cancels_open_requests_and_sends_no_more(server):
    stop = asyncio.Event()
    rows = [row("hang"), row("ok", 3600.0)]
    task = asyncio.create_task(replay(rows, ReplayOptions(url=server.url), stop=stop))
    await server.arrived.wait()
    stop.set()
    (record,) = await task
    assert (record.outcome, record.error) == ("failed", "interrupted")


async def test_cancelling_the_replay_closes_its_connections(server):
    task = asyncio.create_task(replay([row("hang")], ReplayOptions(url=server.url)))
    await server.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        while not server.cancelled:
            await asyncio.sleep(0.01)


async def test_preflight_finds_the_model(server):
    assert await preflight(ReplayOptions(url=server.url)) == "fake"


async def test_notes_of_the_server(server):
    server.pool = {"notes": ["emulated devices: H100", 7]}
    assert await server_notes(ReplayOptions(url=server.url)) == ["emulated devices: H100"]


@pytest.mark.parametrize("pool", [None, [], {"notes": "text"}, {}])
async def test_no_notes(server, pool):
    server.pool = pool
    assert await server_notes(ReplayOptions(url=server.url)) == []


async def test_preflight_errors(server):
    server.models = []
    with pytest.raises(ConfigError, match="lists no model"):
        await preflight(ReplayOptions(url=server.url))
    server.models_status = 401
    with pytest.raises(ConfigError, match="HTTP 401; set --api-key"):
        await preflight(ReplayOptions(url=server.url))
    assert (await preflight(ReplayOptions(url=server.url, model="m"))) == "m"


async def test_unreachable_server():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot reach http://127.0.0.1:{port}"):
            await replay([row()], ReplayOptions(url=f"http://127.0.0.1:{port}", model="m"))
