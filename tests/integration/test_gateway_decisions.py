# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The decision log of a running gateway."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.fakes.fake_vllm import FakeVLLM
from tests.fakes.pool import BODY, pool, post, until

HEADERS = {
    "x-slo-e2el-ms": "5000",
    "x-goodput-task": "sql",
    "x-session-id": "alice",
    "x-request-id": "r1",
}
LATE = {"x-request-deadline": "1000"}


@pytest.fixture
def lines(caplog):
    return lambda: [
        json.loads(r.message) for r in caplog.records if r.name == "vllm_goodput.decisions"
    ]


async def test_nothing_is_logged_unless_asked_for(lines):
    async with pool(FakeVLLM()) as (session, _):
        await post(session)
        await post(session, headers=LATE)
    assert lines() == []


async def test_all_decisions(lines, caplog):
    body = {**BODY, "prompt": "a secret " * 40}
    async with pool(FakeVLLM(), FakeVLLM(), log_decisions="all") as (session, _):
        _, headers, _ = await post(session, body, HEADERS)
        await post(session, body, {**HEADERS, **LATE})
    first, second = lines()
    assert first["decision"] == "dispatch"
    assert first["instance"] == headers["x-goodput-instance"]
    assert (first["request_id"], first["task"], first["slo"]) == ("r1", "sql", {"e2el_ms": 5000})
    assert (first["candidates"], first["held_ms"], first["tried"]) == (2, 0, 0)
    assert first["prompt_len"] == 90  # 360 characters, a quarter token each
    predicted_ms = first["queue_ms"] + first["prefill_ms"] + first["decode_ms"]
    assert first["margin_ms"] <= 5000 - predicted_ms
    assert first["output_q50"] <= first["output_q90"] <= 5
    assert (second["decision"], second["reason"]) == ("reject", "expired")
    assert "secret" not in caplog.text
    assert "alice" not in caplog.text


async def test_rejections_only(lines):
    engine = FakeVLLM(token_s=0.01)
    settings = {"log_decisions": "rejections", "router": {"initial_output_len": 50}}
    async with pool(engine, **settings) as (session, gateway):
        body = {**BODY, "max_tokens": 50}
        for _ in range(3):
            await post(session, {**body, "stream": True})
        await post(session, body, {"x-slo-e2el-ms": "100"})
        (line,) = lines()
        assert (line["decision"], line["reason"], line["candidates"]) == ("reject", "infeasible", 1)
        assert "i0" in line["message"]
        assert line["output_q50"] == 50
        engine.healthy = False
        await until(lambda: not gateway.router.instances["i0"].healthy)
        await post(session, body)
        assert (lines()[1]["reason"], lines()[1]["candidates"]) == ("no-endpoints", 0)


async def test_each_attempt_is_a_decision(lines):
    settings = {"log_decisions": "all", "router": {"policy": "round_robin"}}
    async with pool(FakeVLLM(fault="refuse"), FakeVLLM(), **settings) as (session, _):
        assert (await post(session))[0] == 200
    assert [(o["instance"], o["tried"], o["candidates"]) for o in lines()] == [
        ("i0", 0, 2),
        ("i1", 1, 1),
    ]


async def test_the_time_that_a_request_was_held(lines):
    engine = FakeVLLM(token_s=0.02)  # a request takes 1 s alone and 2 s behind another
    settings = {"log_decisions": "all", "router": {"initial_output_len": 50}}
    async with pool(engine, **settings) as (session, gateway):
        body, slo = {**BODY, "max_tokens": 50}, {"x-slo-e2el-ms": "1500"}
        for _ in range(3):
            await post(session, {**body, "stream": True})
        gateway.router.instances["i0"].max_num_seqs = 1
        first = asyncio.create_task(post(session, body, slo))
        await until(lambda: engine.running == 1)
        await post(session, body, slo)
        await first
    assert [line["held_ms"] > 0 for line in lines()] == [False] * 4 + [True]
    assert lines()[-1]["candidates"] == 1
