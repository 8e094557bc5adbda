# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What would be decided of a request, and that asking changes nothing."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import generate_latest

from tests.fakes.asking import SECRET, explain
from tests.fakes.fake_vllm import FakeVLLM
from tests.fakes.pool import BODY, idle, metric, pool, post, until
from vllm_goodput.instance.auth import SECRET_HEADER

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
SLO = {"x-slo-e2el-ms": "5000"}


@pytest.fixture(autouse=True)
def _secret(monkeypatch):
    monkeypatch.setenv("GOODPUT_POOL_SECRET", SECRET)


async def measure(session, tokens=50):
    for _ in range(3):
        await post(session, {**BODY, "max_tokens": tokens, "stream": True})


async def test_only_the_pool_may_ask():
    async with pool(FakeVLLM()) as (session, _):
        for headers in ({}, {SECRET_HEADER: "wrong"}):
            async with session.post("/goodput/v1/explain", json=BODY, headers=headers) as response:
                assert response.status == 403


async def test_a_dispatch_with_what_was_weighed():
    engine = FakeVLLM(token_s=0.01)
    async with pool(engine, router={"initial_output_len": 50}) as (session, gateway):
        await measure(session)
        status, answer = await explain(session, BODY, {**SLO, "x-goodput-task": "sql"})
        assert status == 200
        assert answer["policy"] == "goodput"
        assert answer["decision"] == {"kind": "dispatch", "instance": "i0"}
        assert answer["request"]["slo"] == {"e2el_ms": 5000}
        assert (answer["request"]["task"], answer["request"]["max_tokens"]) == ("sql", 5)
        (one,) = answer["instances"]
        assert one["measured"]
        assert one["output_len"] == 5  # max_tokens bounds it
        assert one["ttft_ms"] == pytest.approx(one["queue_ms"] + one["prefill_ms"])
        assert one["e2el_ms"] == pytest.approx(one["ttft_ms"] + one["decode_ms"])
        assert 0 < one["margin_ms"] < 5000 - one["e2el_ms"]
        assert (one["chance"], one["harm"], one["in_flight"]) == (pytest.approx(1), 0, 0)
        assert one["limit"] == 256
        assert answer["output_len"]["q50"] <= answer["output_len"]["q90"] <= 5
        state = gateway.router.instances["i0"]
        assert one["tpot_ms"] == pytest.approx(state.speed.decode_step_s(1) * 1e3, rel=0.2)


async def test_it_says_what_then_happens_and_changes_nothing():
    engines = [FakeVLLM(), FakeVLLM(), FakeVLLM()]
    async with pool(*engines, router={"policy": "round_robin"}) as (session, gateway):
        await post(session, {**BODY, "prompt": list(range(100))})
        for turn in range(4):
            body = {**BODY, "prompt": list(range(turn, 200 + turn))}
            sent = [len(e.seen) for e in engines]
            before = generate_latest(gateway.metrics.registry)
            answers = [await explain(session, body, SLO) for _ in range(3)]
            assert generate_latest(gateway.metrics.registry) == before
            assert [len(e.seen) for e in engines] == sent
            assert idle(gateway)
            decisions = [a["decision"] for _, a in answers]
            assert decisions[1:] == decisions[:-1]
            assert all(o["hit_tokens"] == 0 for o in answers[-1][1]["instances"]) == (turn > 0)
            _, headers, _ = await post(session, body)
            assert headers["x-goodput-instance"] == decisions[0]["instance"]


@pytest.mark.parametrize(
    ("body", "path", "meant"),
    [
        (CHAT, None, "/v1/chat/completions"),
        (BODY, None, "/v1/completions"),
        ({**CHAT, **BODY}, None, "/v1/chat/completions"),
        ({**CHAT, **BODY}, "/v1/completions", "/v1/completions"),
        ({}, "/v1/chat/completions", "/v1/chat/completions"),
    ],
)
async def test_the_path_is_asked_for_or_seen_from_the_body(body, path, meant):
    async with pool(FakeVLLM()) as (session, _):
        status, answer = await explain(session, body, path=path)
        assert (status, answer["request"]["path"]) == (200, meant)


@pytest.mark.parametrize(
    ("body", "headers", "path", "status", "param"),
    [
        (BODY, {}, "/v1/embeddings", 400, "path"),
        (BODY, {"x-slo-e2el-ms": "soon"}, None, 400, "x-slo-e2el-ms"),
        ([1], {}, None, 400, "body"),
        ({**BODY, "model": "none"}, {}, None, 404, "model"),
    ],
)
async def test_what_would_be_refused_as_wrong_is_refused(body, headers, path, status, param):
    async with pool(FakeVLLM()) as (session, _):
        got, answer = await explain(session, body, headers, path)
        assert (got, answer["error"]["param"]) == (status, param)


async def test_rejections_tell_why():
    engine = FakeVLLM(token_s=0.01)
    async with pool(engine, router={"initial_output_len": 50}) as (session, gateway):
        await measure(session)
        body = {**BODY, "max_tokens": 50}
        _, answer = await explain(session, body, {"x-slo-e2el-ms": "100"})
        assert (answer["decision"]["kind"], answer["decision"]["reason"]) == (
            "reject",
            "infeasible",
        )
        assert "i0" in answer["decision"]["message"]
        (one,) = answer["instances"]
        assert one["margin_ms"] < 0
        assert one["chance"] < 0.1
        _, answer = await explain(session, body, {"x-request-deadline": "1000"})
        assert answer["decision"]["reason"] == "expired"
        assert metric(gateway, "goodput_rejected_total", reason="infeasible") == 0
        engine.healthy = False
        await until(lambda: not gateway.router.instances["i0"].healthy)
        _, answer = await explain(session, body)
        assert (answer["decision"]["reason"], answer["instances"]) == ("no-endpoints", [])


async def test_what_the_gateway_itself_refuses():
    engine = FakeVLLM(token_s=0.02)
    async with pool(engine, max_open_requests=1) as (session, _):
        task = asyncio.create_task(post(session, {**BODY, "max_tokens": 20}))
        await until(lambda: engine.running == 1)
        _, answer = await explain(session, BODY)
        assert answer["decision"]["reason"] == "saturated"
        assert (await task)[0] == 200


@pytest.mark.parametrize(("max_held", "kind"), [(1, "hold"), (0, "reject")])
async def test_what_would_be_held(max_held, kind):
    engine = FakeVLLM(token_s=0.02)
    settings = {"router": {"initial_output_len": 50, "max_held": max_held}}
    async with pool(engine, **settings) as (session, gateway):
        await measure(session)
        gateway.router.instances["i0"].max_num_seqs = 1
        slo, body = {"x-slo-e2el-ms": "1500"}, {**BODY, "max_tokens": 50}
        running = asyncio.create_task(post(session, body, slo))
        await until(lambda: engine.running == 1)
        _, answer = await explain(session, body, slo)
        assert answer["decision"]["kind"] == kind
        if kind == "hold":
            assert 0 <= answer["decision"]["retry_ms"] <= 1500
        else:
            assert answer["decision"]["reason"] == "saturated"
        (one,) = answer["instances"]
        assert (one["in_flight"], one["limit"]) == (1, 1)
        assert one["queue_ms"] > 0
        assert metric(gateway, "goodput_held_requests") == 0
        assert (await running)[0] == 200


async def test_without_a_deadline_there_is_no_margin():
    async with pool(FakeVLLM()) as (session, _):
        _, answer = await explain(session, BODY)
        assert answer["instances"][0]["margin_ms"] is None
        assert answer["request"]["slo"] == {}
