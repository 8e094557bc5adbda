# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The gateway over real local servers that act as vLLM."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from tests.fakes.fake_vllm import FakeVLLM
from tests.fakes.pool import BODY, idle, metric, pool, post, until
from vllm_goodput.config import PoolConfig
from vllm_goodput.gateway.app import GATEWAY, build_app
from vllm_goodput.instance.auth import SECRET_HEADER
from vllm_goodput.router.estimator import Sample


async def test_a_plain_answer_passes_through_with_our_headers():
    engine = FakeVLLM()
    async with pool(engine) as (session, gateway):
        headers = {"x-request-id": "abc", "x-slo-e2el-ms": "5000"}
        status, got, body = await post(session, headers=headers)
        assert status == 200
        assert json.loads(body)["choices"][0]["text"] == "xxxxx"
        assert got["x-from-engine"] == "yes"
        assert got["x-goodput-instance"] == "i0"
        assert float(got["x-goodput-predicted-e2el-ms"]) > 0
        assert got["x-request-id"] == "abc"
        assert idle(gateway)
    sent_headers, sent = engine.seen[0]
    assert json.loads(sent) == BODY
    assert sent_headers["x-request-id"] == "abc"


async def test_the_body_is_passed_on_byte_for_byte():
    engine = FakeVLLM()
    raw = b'{"model" : "tiny", "prompt":"caf\\u00e9", "max_tokens":1, "unknown": [1.0, 1e3]}'
    async with (
        pool(engine) as (session, _),
        session.post("/v1/completions", data=raw) as response,
    ):
        assert response.status == 200
    assert engine.seen[0][1] == raw


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_passes_through_unchanged(path):
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    engine = FakeVLLM()
    async with pool(engine) as (session, gateway):
        _, headers, through = await post(session, body, path=path)
        async with aiohttp.ClientSession(engine.url) as direct:
            _, _, straight = await post(direct, body, path=path)
        assert through == straight
        assert headers["Content-Type"] == "text/event-stream"
        assert gateway.router.instances["i0"].speed.known
        assert idle(gateway)


async def test_models_health_and_metrics():
    async with pool(FakeVLLM(), FakeVLLM(model="other")) as (session, _):
        async with session.get("/v1/models") as response:
            assert [m["id"] for m in (await response.json())["data"]] == ["tiny", "other"]
        async with session.get("/health") as response:
            assert response.status == 200
            assert (await response.json())["instances"] == {"i0": "healthy", "i1": "healthy"}
        await post(session)
        async with session.get("/metrics") as response:
            text = await response.text()
        assert 'goodput_requests_total{outcome="met",task="none"} 1.0' in text
        assert 'goodput_instance_healthy{instance="i1"} 1.0' in text


async def test_a_model_goes_to_the_instance_that_serves_it():
    async with pool(FakeVLLM(), FakeVLLM(model="other")) as (session, _):
        for _ in range(3):
            _, headers, _ = await post(session, {**BODY, "model": "other"})
            assert headers["x-goodput-instance"] == "i1"
        status, _, body = await post(session, {**BODY, "model": "none"})
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("headers", "body", "status", "param"),
    [
        ({"x-slo-e2el-ms": "soon"}, BODY, 400, "x-slo-e2el-ms"),
        ({"x-slo-tpot-ms": "-1"}, BODY, 400, "x-slo-tpot-ms"),
        ({}, {**BODY, "vllm_xargs": {"slo_e2el_ms": True}}, 400, "vllm_xargs.slo_e2el_ms"),
        ({}, {**BODY, "vllm_xargs": 7}, 400, "vllm_xargs"),
        ({}, {**BODY, "model": 7}, 400, "model"),
        ({}, [1], 400, "body"),
        ({"x-request-id": "a" * 200}, BODY, 400, "x-request-id"),
    ],
)
async def test_bad_input_is_an_openai_shaped_400(headers, body, status, param):
    engine = FakeVLLM()
    async with pool(engine) as (session, gateway):
        got, _, answer = await post(session, body, headers)
        assert (got, json.loads(answer)["error"]["param"]) == (status, param)
        assert idle(gateway)
    assert not engine.seen


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"]
)
async def test_bodies_that_are_not_json_are_400(raw):
    async with (
        pool(FakeVLLM()) as (session, _),
        session.post("/v1/completions", data=raw) as response,
    ):
        assert response.status == 400
        assert "body" in (await response.json())["error"]["message"]


async def test_a_body_over_the_limit_is_413_in_openai_shape():
    async with pool(FakeVLLM(), max_body_mb=0.01) as (session, _):
        status, _, body = await post(session, {**BODY, "prompt": "x" * 20_000})
        assert status == 413
        assert "message" in json.loads(body)["error"]


async def test_an_expired_deadline_is_rejected_and_never_sent():
    engine = FakeVLLM()
    async with pool(engine) as (session, _):
        status, headers, _ = await post(session, headers={"x-request-deadline": "1000"})
        assert (status, headers["x-goodput-reject-reason"]) == (422, "expired")
        assert headers["x-should-retry"] == "false"
    assert not engine.seen


async def test_infeasible_is_rejected_once_speeds_are_known():
    engine = FakeVLLM(token_s=0.01)
    async with pool(engine, router={"initial_output_len": 50}) as (session, gateway):
        for _ in range(3):
            await post(session, {**BODY, "max_tokens": 50, "stream": True})
        sent = len(engine.seen)
        slo = {"x-slo-e2el-ms": "100"}
        status, headers, _ = await post(session, {**BODY, "max_tokens": 50}, slo)
        assert (status, headers["x-goodput-reject-reason"]) == (422, "infeasible")
        assert len(engine.seen) == sent
        assert metric(gateway, "goodput_rejected_total", reason="infeasible") == 1


async def test_internal_fields_and_headers_of_clients_do_not_reach_an_instance():
    engine = FakeVLLM()
    body = {**BODY, "vllm_xargs": {"goodput_resume": [1], "task": "t"}}
    async with pool(engine) as (session, _):
        headers = {"x-goodput-pool-secret": "guess", "x-goodput-task": "t"}
        assert (await post(session, body, headers))[0] == 200
    sent_headers, raw = engine.seen[0]
    assert json.loads(raw)["vllm_xargs"] == {"task": "t"}
    assert "x-goodput-pool-secret" not in sent_headers
    assert sent_headers["x-goodput-task"] == "t"


@pytest.mark.parametrize("fault", ["refuse", "crash"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_instance_is_retried_elsewhere_before_the_first_byte(fault, stream):
    bad, good = FakeVLLM(fault=fault), FakeVLLM()
    async with pool(bad, good, router={"policy": "round_robin"}) as (session, gateway):
        for _ in range(4):
            status, headers, _ = await post(session, {**BODY, "stream": stream})
            assert (status, headers["x-goodput-instance"]) == (200, "i1")
        assert idle(gateway)
        assert metric(gateway, "goodput_retries_total", instance="i0") >= 1


async def test_an_unreachable_instance_is_taken_out_and_comes_back():
    bad, good = FakeVLLM(), FakeVLLM()
    async with pool(bad, good, router={"policy": "round_robin"}) as (session, gateway):
        bad.healthy = False
        await until(lambda: not gateway.router.instances["i0"].healthy)
        assert (await post(session))[1]["x-goodput-instance"] == "i1"
        bad.healthy = True
        await until(lambda: gateway.router.instances["i0"].healthy)
        assert {(await post(session))[1]["x-goodput-instance"] for _ in range(2)} == {"i0", "i1"}


async def test_no_instance_at_all_is_503_with_retry_after():
    engine = FakeVLLM(healthy=False)
    async with pool(engine) as (session, _):
        status, headers, _ = await post(session)
        assert (status, headers["x-goodput-reject-reason"]) == (503, "no-endpoints")
        assert int(headers["Retry-After"]) >= 1
        async with session.get("/health") as response:
            assert response.status == 503


async def test_every_attempt_failing_ends_in_a_definite_error():
    engines = [FakeVLLM(fault="crash") for _ in range(4)]
    async with pool(*engines, router={"policy": "round_robin"}) as (session, gateway):
        status, _, body = await post(session)
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_failed")
        assert sum(len(e.seen) for e in engines) == 3
        assert idle(gateway)


@pytest.mark.parametrize("count", [1, 2])
async def test_when_all_are_busy_their_own_answer_is_passed_on(count):
    async with pool(*(FakeVLLM(fault="refuse") for _ in range(count))) as (session, gateway):
        status, _, body = await post(session)
        assert (status, json.loads(body)) == (503, {"error": {"message": "busy"}})
        assert idle(gateway)


STALL = {"health": {"interval_s": 0.05, "timeout_s": 1.0, "stall_s": 0.3}}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_on_an_instance_that_froze_is_tried_elsewhere(stream):
    frozen, good = FakeVLLM(fault="silent"), FakeVLLM()
    async with pool(frozen, good, router={"policy": "round_robin"}, **STALL) as (session, gateway):
        task = asyncio.create_task(post(session, {**BODY, "stream": stream}))
        await until(lambda: frozen.seen)
        frozen.healthy = False
        status, headers, _ = await task
        assert (status, headers["x-goodput-instance"]) == (200, "i1")
        assert idle(gateway)


async def test_a_stream_that_froze_ends_with_an_error_event():
    engine = FakeVLLM(fault="stall")
    async with pool(engine, **STALL) as (session, gateway):
        task = asyncio.create_task(post(session, {**BODY, "stream": True}))
        await until(lambda: engine.running == 1)
        engine.healthy = False
        status, _, body = await task
        assert status == 200
        assert b"upstream_failed" in body
        assert idle(gateway)


async def test_cookies_of_one_client_do_not_reach_the_engine_with_another():
    engine = FakeVLLM()
    async with engine:
        engine.url = engine.url.replace("127.0.0.1", "localhost")
        instances = [{"name": "i0", "url": engine.url}]
        router = {"predictor": {"kind": "histogram"}}
        config = PoolConfig.model_validate(
            {"instances": instances, "probe": {"enabled": False}, "router": router}
        )
        runner = web.AppRunner(build_app(config), shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(url, cookie_jar=aiohttp.DummyCookieJar()) as session:
            await until(lambda: runner.app[GATEWAY].membership.ready())
            for _ in range(2):
                assert (await post(session))[0] == 200
        await runner.cleanup()
    assert all("cookie" not in headers for headers, _ in engine.seen)


async def test_a_plain_answers_prediction_is_the_one_made_at_dispatch():
    async with pool(FakeVLLM(token_s=0.01)) as (session, _):
        for _ in range(6):
            body = {**BODY, "max_tokens": 30}
            _, headers, _ = await post(session, body, {"x-goodput-task": "t"})
        assert float(headers["x-goodput-predicted-e2el-ms"]) < 550  # 300 ms by itself


async def test_rejections_of_idle_instances_lead_to_a_new_measurement(monkeypatch):
    monkeypatch.setattr("vllm_goodput.gateway.membership.REMEASURE_S", 0.0)
    engine = FakeVLLM(token_s=0.001)
    async with pool(engine, probe={"enabled": True}) as (session, gateway):
        speed = gateway.router.instances["i0"].speed
        for _ in range(20):  # a wrong belief: half a second per token
            speed.add(Sample(50.0, 0, 0, 100, 100))
        slo = {"x-slo-e2el-ms": "1000"}
        assert (await post(session, headers=slo))[0] == 422
        await until(lambda: gateway.router.instances["i0"].speed is not speed)
        assert (await post(session, headers=slo))[0] == 200


@pytest.mark.parametrize("raw", [b"not gzip", b""])
async def test_a_body_that_does_not_decompress_is_a_400(raw):
    async with pool(FakeVLLM()) as (session, gateway):
        headers = {"Content-Encoding": "gzip"}
        async with session.post("/v1/completions", data=raw, headers=headers) as response:
            assert response.status == 400
        assert metric(gateway, "goodput_requests_total", task="none", outcome="invalid") == 1


@pytest.mark.parametrize("fault", ["cut", "error"])
async def test_a_stream_that_breaks_ends_with_an_error_event(fault):
    engine = FakeVLLM(fault=fault)
    async with pool(engine) as (session, gateway):
        status, _, body = await post(session, {**BODY, "stream": True})
        assert status == 200
        assert b'"error"' in body
        assert metric(gateway, "goodput_requests_total", task="none", outcome="failed") == 1
        assert idle(gateway)


async def test_an_engine_error_status_passes_through():
    engine = FakeVLLM(fault="500")
    async with pool(engine) as (session, gateway):
        status, _, body = await post(session)
        assert (status, json.loads(body)) == (500, {"error": {"message": "broken"}})
        assert idle(gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_request_upstream(stream):
    engine = FakeVLLM(token_s=0.02)
    async with pool(engine) as (session, gateway):
        body = {**BODY, "max_tokens": 500, "stream": stream}
        async with aiohttp.ClientSession(session._base_url) as leaving:
            task = asyncio.create_task(post(leaving, body))
            await until(lambda: engine.running == 1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: engine.aborted == 1)
        await until(lambda: idle(gateway))
        assert metric(gateway, "goodput_requests_total", task="none", outcome="aborted") == 1


async def test_a_client_that_leaves_while_held_frees_its_place():
    engine = FakeVLLM(
        token_s=0.02
    )  # a request takes 1 s alone and 2 s behind another; 1.5 s are allowed
    settings = {"router": {"initial_output_len": 50, "max_held": 1}}
    async with pool(engine, **settings) as (session, gateway):
        for _ in range(3):
            await post(session, {**BODY, "max_tokens": 50, "stream": True})
        gateway.router.instances["i0"].max_num_seqs = 1
        slo, body = {"x-slo-e2el-ms": "1500"}, {**BODY, "max_tokens": 50}
        running = asyncio.create_task(post(session, body, slo))
        await until(lambda: engine.running == 1)
        held = asyncio.create_task(post(session, body, slo))
        await until(lambda: metric(gateway, "goodput_held_requests") == 1)
        status, headers, _ = await post(session, body, slo)
        assert (status, headers["x-goodput-reject-reason"]) == (429, "saturated")
        held.cancel()
        await until(lambda: metric(gateway, "goodput_held_requests") == 0)
        assert (await running)[0] == 200


async def test_too_many_open_requests_are_429():
    engine = FakeVLLM(token_s=0.02)
    async with pool(engine, max_open_requests=2) as (session, _):
        body = {**BODY, "max_tokens": 20}
        tasks = [asyncio.create_task(post(session, body)) for _ in range(2)]
        await until(lambda: engine.running == 2)
        status, headers, _ = await post(session)
        assert (status, headers["x-goodput-reject-reason"]) == (429, "saturated")
        assert [r[0] for r in await asyncio.gather(*tasks)] == [200, 200]


async def test_two_clients_may_use_the_same_request_id_at_once():
    async with pool(FakeVLLM(token_s=0.01)) as (session, gateway):
        headers = {"x-request-id": "same"}
        results = await asyncio.gather(*(post(session, headers=headers) for _ in range(5)))
        assert [r[0] for r in results] == [200] * 5
        assert idle(gateway)


async def test_missed_objectives_are_counted_by_metric():
    async with pool(FakeVLLM(token_s=0.02)) as (session, gateway):
        await post(session, headers={"x-slo-e2el-ms": "30", "x-goodput-task": "math"})
        assert metric(gateway, "goodput_requests_total", task="math", outcome="missed") == 1
        assert metric(gateway, "goodput_slo_missed_total", task="math", metric="e2el") == 1


async def test_unknown_paths_and_methods_answer_in_openai_shape():
    async with pool(FakeVLLM()) as (session, _):
        async with session.get("/nope") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
        async with session.get("/v1/completions") as response:
            assert response.status == 405


async def test_the_pool_page_needs_the_secret(monkeypatch):
    async with pool(FakeVLLM()) as (session, _):
        monkeypatch.setenv("GOODPUT_POOL_SECRET", "right")
        async with session.get("/goodput/v1/pool", headers={SECRET_HEADER: "wrong"}) as response:
            assert response.status == 403
        async with session.get("/goodput/v1/pool", headers={SECRET_HEADER: "right"}) as response:
            (instance,) = (await response.json())["instances"]
            assert instance["state"] == "healthy"
        async with session.get("/goodput/v1/notes") as response:
            assert (await response.json())["notes"] == []


async def test_probes_measure_an_instance_before_it_takes_requests():
    engine = FakeVLLM(token_s=0.005)
    async with pool(engine, probe={"enabled": True}) as (_, gateway):
        speed = gateway.router.instances["i0"].speed
        assert speed.known
        assert 0.004 < speed.decode_step_s(1) < 0.05
