# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Length predictors in the gateway: every kind serves, models change while it runs, and odd bodies harm nothing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import pty
import signal
import sys
import termios

import aiohttp
import pytest

from tests.fakes.fake_vllm import FakeVLLM
from tests.fakes.length_model import TINY, save_model
from tests.fakes.pool import BODY, idle, metric, pool, post, until
from vllm_goodput.predictor.log import read_log
from vllm_goodput.predictor.training import fit

CHAT = "/v1/chat/completions"


@pytest.fixture
def model(tmp_path):
    """Path of a model that predicts about 100 tokens."""
    return save_model(tmp_path / "model.npz", 100)


def router(**predictor):
    return {"initial_output_len": 300, "predictor": predictor}


async def predicted(session, gateway, engine, body=None, headers=None, path="/v1/completions"):
    """Serve a request; returns the median length with which it was dispatched."""
    task = asyncio.create_task(post(session, body or {**BODY, "max_tokens": 20}, headers, path))
    await until(lambda: gateway.router._open)
    (opened,) = gateway.router._open.values()
    assert (await task)[0] == 200
    return opened.lengths.quantile(0.5)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "length"),
    [("learned", 100), ("histogram", 300), ("constant", 300), ("max_tokens", 20)],
)
async def test_every_kind_serves_and_routes_by_its_prediction(kind, length, stream, model):
    engine = FakeVLLM()
    settings = router(kind=kind, **({"model": model} if kind == "learned" else {}))
    async with pool(engine, router={**settings, "use_max_tokens": False}) as (session, gateway):
        body = {**BODY, "max_tokens": 20, "stream": stream}
        got = await predicted(session, gateway, engine, body, {"x-goodput-task": "t"})
        assert got == pytest.approx(length, rel=0.15)
        assert idle(gateway)
        assert metric(gateway, "goodput_predictor_failures_total") == 0
        assert metric(
            gateway,
            "goodput_predictor_loaded_timestamp_seconds",
            kind=kind,
            model=settings["predictor"].get("model", ""),
        )


async def test_max_tokens_bounds_the_prediction_unless_told_otherwise(model):
    engine = FakeVLLM()
    async with pool(engine, router=router(model=model)) as (session, gateway):
        assert await predicted(session, gateway, engine) == 20


async def test_the_context_of_the_smallest_instance_bounds_the_prediction(model):
    engines = [FakeVLLM(max_model_len=80), FakeVLLM(max_model_len=60), FakeVLLM()]
    async with pool(*engines, router=router(model=model)) as (session, gateway):
        for prompt, left in ((list(range(10)), 50), (list(range(90)), 1)):
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 70}
            assert await predicted(session, gateway, engines[0], body) == left


async def test_concurrent_requests_share_batches(model, monkeypatch):
    sizes = []
    async with pool(FakeVLLM(), router=router(model=model)) as (session, gateway):
        inner = gateway.lengths.predictor.predict_batch

        def batch(infos):
            sizes.append(len(infos))
            return inner(infos)

        monkeypatch.setattr(gateway.lengths.predictor, "predict_batch", batch)
        results = await asyncio.gather(*(post(session) for _ in range(100)))
        assert {r[0] for r in results} == {200}
        assert sum(sizes) == 100
        assert idle(gateway)


async def test_a_held_request_keeps_its_prediction_and_asks_once(model, monkeypatch):
    engine = FakeVLLM(token_s=0.01)
    calls = []
    settings = {**router(model=model), "use_max_tokens": False}
    async with pool(engine, router=settings) as (session, gateway):
        for _ in range(3):
            await post(session, {**BODY, "max_tokens": 100, "stream": True})
        gateway.router.instances["i0"].max_num_seqs = 1
        inner = gateway.lengths.predictor.predict_batch
        monkeypatch.setattr(
            gateway.lengths.predictor, "predict_batch", lambda i: calls.append(1) or inner(i)
        )
        slo, body = {"x-slo-e2el-ms": "3500"}, {**BODY, "max_tokens": 100}
        running = asyncio.create_task(post(session, body, slo))
        await until(lambda: engine.running == 1)
        held = asyncio.create_task(post(session, body, slo))
        assert (await running)[0] == (await held)[0] == 200
        assert len(calls) == 2


async def test_a_changed_model_file_takes_over_without_a_restart(model, tmp_path, caplog):
    engine = FakeVLLM()
    settings = {**router(model=model, reload_s=0.05), "use_max_tokens": False}
    path = tmp_path / "model.npz"
    async with pool(engine, router=settings) as (session, gateway):
        tasks = map(str, itertools.count())

        async def length():
            # A task of its own, for which nothing has been learned yet.
            return await predicted(
                session, gateway, engine, headers={"x-goodput-task": next(tasks)}
            )

        def swaps(kind=""):
            return metric(gateway, f"goodput_predictor_swap{kind}")

        def put(data):
            # At once: a look at a file half written would count as one more failure.
            part = tmp_path / "part"
            part.write_bytes(data)
            part.replace(path)

        assert await length() == pytest.approx(100, rel=0.15)
        save_model(path, 1000)
        await until(lambda: swaps("s_total") == 1)
        assert await length() == pytest.approx(1000, rel=0.15)
        for failures, damage in enumerate(
            (
                lambda: put(path.read_bytes()[:1000]),
                lambda: put(b""),
                path.unlink,
                path.mkdir,
            ),
            start=1,
        ):
            caplog.clear()
            damage()
            await until(lambda n=failures: swaps("_failures_total") >= n)
            await asyncio.sleep(0.3)  # several looks
            assert swaps("_failures_total") == failures
            (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
            assert str(path) in record.getMessage()
            assert await length() == pytest.approx(1000, rel=0.15)
        path.rmdir()
        await until(lambda: swaps("_failures_total") == 5)
        save_model(path, 200)
        await until(lambda: swaps("s_total") == 2)
        assert await length() == pytest.approx(200, rel=0.15)


async def test_requests_open_during_a_swap_finish_and_count(model, tmp_path):
    settings = router(model=model, reload_s=0.05)
    async with pool(FakeVLLM(token_s=0.02), router=settings) as (session, gateway):
        tasks = [asyncio.create_task(post(session, {**BODY, "max_tokens": 40})) for _ in range(5)]
        await until(lambda: len(gateway.router._open) == 5)
        save_model(tmp_path / "model.npz", 1000)
        await until(lambda: metric(gateway, "goodput_predictor_swaps_total") == 1)
        assert {r[0] for r in await asyncio.gather(*tasks)} == {200}
        assert metric(gateway, "goodput_predictor_failures_total") == 0


SECRET = "Zanzibar"


async def test_the_log_holds_finished_requests_without_their_text_and_trains(model, tmp_path):
    path = tmp_path / "log" / "finished.jsonl"
    settings = router(model=model, log={"path": str(path), "max_mb": 10})
    engine, broken = FakeVLLM(token_s=0.0), FakeVLLM(model="broken", fault="500")
    async with pool(engine, broken, router=settings) as (session, gateway):
        for number in range(40):
            text = f"{SECRET} number {number}"
            messages = [{"role": "system", "content": SECRET}, {"role": "user", "content": text}]
            body = {"model": "tiny", "messages": messages, "max_tokens": 50, "stream": True}
            headers = {"x-session-id": f"{SECRET}-{number % 20}", "x-goodput-task": "t"}
            assert (await post(session, body, headers, CHAT))[0] == 200
        assert (await post(session, {**BODY, "model": "broken"}))[0] == 500
        assert (await post(session, {**BODY, "prompt": [1, 2, 3]}))[0] == 200
        assert metric(gateway, "goodput_training_log_dropped_total") == 0
    assert SECRET.lower() not in path.read_text().lower()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["cut"] for row in rows] == [True] * 41
    data = read_log([path])
    assert data.output_len.tolist() == [50.0] * 40 + [5.0]
    assert set(data.task[:40]) == {"t"}
    assert len(set(data.session.tolist())) == 21
    assert fit(data, TINY).model.models == ["tiny"]


async def test_a_log_that_cannot_be_written_harms_no_request(model, tmp_path, monkeypatch):
    path = tmp_path / "finished.jsonl"
    async with pool(FakeVLLM(), router=router(model=model, log={"path": str(path)})) as (
        session,
        gateway,
    ):

        def full(fd, data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("vllm_goodput.predictor.log.os.write", full)
        for _ in range(3):
            assert (await post(session))[0] == 200
        await until(lambda: metric(gateway, "goodput_training_log_dropped_total") == 3)


@pytest.mark.parametrize("kind", ["text", "chat", "tokens"])
async def test_long_prompts(kind, model):
    words = "naïve café " * 40_000  # some 100,000 tokens
    path, body = "/v1/completions", {"model": "tiny", "prompt": words, "max_tokens": 3}
    if kind == "tokens":
        body["prompt"] = list(range(100_000))
    if kind == "chat":
        half = words[: len(words) // 2]
        messages = [
            {"role": "system", "content": half},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": half},
            {"role": "user", "content": "y"},
        ]
        path, body = CHAT, {"model": "tiny", "messages": messages, "max_tokens": 3}
    async with pool(FakeVLLM(), router=router(model=model)) as (session, gateway):
        results = await asyncio.gather(*(post(session, body, path=path) for _ in range(5)))
        assert [r[0] for r in results] == [200] * 5
        assert metric(gateway, "goodput_predictor_failures_total") == 0


def nested(depth):
    inner: object = "x"
    for _ in range(depth):
        inner = [inner]
    return inner


ODD = [
    {"messages": []},
    {"messages": None},
    {"messages": "hello"},
    {"messages": [None, 5, "x", []]},
    {"messages": [{}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": None, "content": 5}]},
    {"messages": [{"role": ["user"], "content": {"text": "x"}}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, None, {"text": 5}]}]},
    {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "assistant", "tool_calls": [None, {"function": {"name": 5}}]}] * 3},
    {"messages": [{"role": "assistant", "tool_calls": {"function": "f"}}, {"role": "tool"}]},
    {"messages": [{"role": "user", "content": nested(900)}] * 2},
    {
        "messages": [
            {"role": "assistant", "tool_calls": [{"function": {"arguments": nested(900)}}]},
            {"role": "user", "content": "x"},
        ]
    },
    {"messages": [{"role": "user", "content": "\0" * 3000}]},
    {"messages": [{"role": "user", "content": "x"}] * 5000},
    {"messages": [{"role": "user", "content": "x"}], "tools": 5, "stop": 5, "response_format": "j"},
    {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [None],
        "response_format": {"type": 5},
    },
    {
        "messages": [{"role": "user", "content": "x"}],
        "stop": [""] * 1000,
        "guided_json": nested(90),
    },
    {"prompt": ""},
    {"prompt": None},
    {"prompt": []},
    {"prompt": [1, 2, 3]},
    {"prompt": [[1, 2], [3]]},
    {"prompt": ["a", "b"]},
    {"prompt": {"a": 1}},
    {"prompt": nested(900)},
    {"prompt": "x", "max_tokens": 1, "n": 3},
    {},
]


@pytest.mark.parametrize("number", range(len(ODD)))
async def test_odd_bodies_never_fail_because_of_the_predictor(number, model, tmp_path):
    settings = router(model=model, log={"path": str(tmp_path / "l.jsonl")})
    async with pool(FakeVLLM(), router=settings) as (session, gateway):
        for path in (CHAT, "/v1/completions"):
            headers = {"x-goodput-task": "t", "x-session-id": "s"}
            for _ in range(2):
                status, _, answer = await post(
                    session, {"model": "tiny", **ODD[number]}, headers, path
                )
                assert (status, json.loads(answer)["usage"]["total_tokens"] > 0) == (200, True)
        assert idle(gateway)
    assert len(read_log([tmp_path / "l.jsonl"])) >= 2


@pytest.mark.parametrize("part", ["\\ud800", "\\udc00 \\ud800", "\\ud83d\\ude00"])
async def test_lone_surrogates_are_refused_as_bad_json_not_by_the_predictor(part, model):
    async with pool(FakeVLLM(), router=router(model=model)) as (session, gateway):
        raw = f'{{"model": "tiny", "max_tokens": 3, "prompt": "a {part} b"}}'
        async with session.post("/v1/completions", data=raw) as response:
            whole = "ude00" in part
            assert response.status == (200 if whole else 400)
            assert whole or "valid JSON" in (await response.json())["error"]["message"]
        assert metric(gateway, "goodput_predictor_failures_total") == 0


async def test_a_predictor_that_breaks_costs_no_request(model, monkeypatch, caplog):
    async with pool(FakeVLLM(), router=router(model=model)) as (session, gateway):

        def broken(*_):
            raise ValueError(SECRET)

        monkeypatch.setattr(gateway.lengths._learned, "predict_batch", broken)
        results = await asyncio.gather(*(post(session) for _ in range(10)))
        assert [r[0] for r in results] == [200] * 10
        assert metric(gateway, "goodput_predictor_failures_total") >= 10
        assert idle(gateway)
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(errors) == 1
    assert SECRET not in caplog.text


async def test_a_body_that_cannot_be_viewed_is_served_all_the_same(model, monkeypatch):
    def too_deep(*_):
        raise RecursionError

    monkeypatch.setattr("vllm_goodput.gateway.lengths.view_of", too_deep)
    async with pool(FakeVLLM(), router=router(model=model)) as (session, gateway):
        assert (await post(session))[0] == 200
        assert metric(gateway, "goodput_predictor_failures_total") == 1


async def test_when_nothing_can_predict_the_answer_is_an_internal_error(monkeypatch):
    async with pool(FakeVLLM()) as (session, gateway):

        def broken(*_):
            raise ValueError(SECRET)

        monkeypatch.setattr(gateway.lengths.predictor, "predict_batch", broken)
        status, _, answer = await post(session)
        assert (status, json.loads(answer)["error"]["code"]) == (500, "internal_error")
        assert SECRET.encode() not in answer
        assert metric(gateway, "goodput_requests_total", task="none", outcome="failed") == 1


@contextlib.asynccontextmanager
async def process(tmp_path, engine, predictor, **options):
    """`vllm-goodput route` as a process of its own, once it is ready; yields it and a client session."""
    config = {
        "port": 0,
        "probe": {"enabled": False},
        "instances": [{"name": "i0", "url": engine.url}],
        "router": {"predictor": predictor},
    }
    (tmp_path / "pool.yaml").write_text(json.dumps(config))
    command = ("-m", "vllm_goodput.cli", "route", "--config", str(tmp_path / "pool.yaml"))
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, **options
    )
    try:
        async with asyncio.timeout(30):
            line = await gateway.stdout.readline()
        async with aiohttp.ClientSession(line.split()[-1].decode()) as session:
            async with asyncio.timeout(10):
                while not await answers(session, "/health"):
                    await asyncio.sleep(0.05)
            yield gateway, session
    finally:
        if gateway.returncode is None:
            gateway.kill()
        await gateway.wait()


async def answers(session, path, text=""):
    async with session.get(path) as response:
        return response.status == 200 and text in await response.text()


async def test_hangup_reloads_and_termination_flushes_the_log(model, tmp_path):
    log = tmp_path / "l.jsonl"
    async with FakeVLLM() as engine:
        predictor = {"model": model, "reload_s": 3600, "log": {"path": str(log)}}
        async with process(tmp_path, engine, predictor) as (gateway, session):
            save_model(tmp_path / "model.npz", 1000)
            assert await answers(session, "/metrics", "goodput_predictor_swaps_total 0.0")
            gateway.send_signal(signal.SIGHUP)
            async with asyncio.timeout(10):
                while not await answers(session, "/metrics", "goodput_predictor_swaps_total 1.0"):
                    await asyncio.sleep(0.05)
            assert (await post(session))[0] == 200
            gateway.terminate()
            async with asyncio.timeout(10):
                assert await gateway.wait() == 0
    assert len(read_log([log])) == 1


async def test_the_end_of_its_terminal_ends_the_gateway(tmp_path):
    master, slave = pty.openpty()

    def take_terminal():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    async with FakeVLLM() as engine:
        options = {"stdin": slave, "preexec_fn": take_terminal}
        async with process(tmp_path, engine, {"kind": "histogram"}, **options) as (gateway, _):
            gateway.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.3)
            assert gateway.returncode is None
            os.close(slave)
            os.close(master)
            async with asyncio.timeout(10):
                assert await gateway.wait() == 0


@pytest.mark.parametrize(
    ("extra", "total"), [({"n": 3}, 3), ({"prompt": ["a", "b"]}, 1), ({"prompt": [[1], [2, 3]]}, 1)]
)
async def test_several_answers_of_one_request_are_not_taken_for_a_long_one(
    extra, total, model, tmp_path
):
    log = tmp_path / "finished.jsonl"
    settings = router(model=model, log={"path": str(log)})
    async with pool(FakeVLLM(), router=settings) as (session, gateway):
        answer = (await post(session, {**BODY, "max_tokens": 6, **extra}))[1]
    prompts = len(extra.get("prompt", [0]))
    (row,) = map(json.loads, log.read_text().splitlines())
    # The fake server multiplies by n only, so that several prompts share its tokens.
    assert row["output_len"] == 6 * total / max(total, prompts)
    assert answer
    assert metric(gateway, "goodput_output_lengths_total", task="none") == 1
