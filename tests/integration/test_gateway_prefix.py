# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the gateway knows of its instances' prefix caches, from its own dispatches and from KV events."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.fakes.asking import SECRET, hits, pool_page
from tests.fakes.fake_vllm import FakeVLLM
from tests.fakes.kv_publisher import CLEARED, KvPublisher, removed, stored
from tests.fakes.pool import metric, pool, post, until
from vllm_goodput.config import RouterConfig
from vllm_goodput.router import Router

IDS = list(range(1000, 1640))  # 640 tokens: 40 blocks of 16
BODY = {"model": "tiny", "prompt": IDS, "max_tokens": 2}
TEXT = {"model": "tiny", "prompt": "all work and no play " * 100, "max_tokens": 2}
# The last token is always computed, and only whole blocks are reused: 639 tokens have 39 blocks of 16.
ALL_BUT_LAST_BLOCK = 624
ROUND_ROBIN = {"router": {"policy": "round_robin"}}


@pytest.fixture(autouse=True)
def _secret(monkeypatch):
    monkeypatch.setenv("GOODPUT_POOL_SECRET", SECRET)


async def test_what_was_sent_to_an_instance_is_expected_in_its_cache():
    async with pool(FakeVLLM(), FakeVLLM(), **ROUND_ROBIN) as (session, _):
        assert await hits(session, BODY) == {"i0": 0, "i1": 0}
        _, headers, _ = await post(session, BODY)
        there = headers["x-goodput-instance"]
        found = await hits(session, BODY)
        assert found.pop(there) == ALL_BUT_LAST_BLOCK
        assert set(found.values()) == {0}
        longer = {**BODY, "prompt": [*IDS, *range(100)]}
        assert (await hits(session, longer))[there] == 640
        other = {**BODY, "prompt": [*IDS[:100], *range(700)]}
        assert (await hits(session, other))[there] == 96  # six whole blocks of the 100 in common


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_texts_and_chats_that_begin_alike_share(path):
    chat = [{"role": "system", "content": TEXT["prompt"]}, {"role": "user", "content": "one"}]
    body = {"model": "tiny", "max_tokens": 2}
    body |= {"messages": chat} if "chat" in path else {"prompt": TEXT["prompt"] + "one"}
    async with pool(FakeVLLM()) as (session, _):
        await post(session, body, path=path)
        chat[1]["content"] = "another"
        body |= {} if "chat" in path else {"prompt": TEXT["prompt"] + "another"}
        # 2,100 characters in common, at a quarter token each; what is left of blocks is rounded down twice.
        assert 480 <= (await hits(session, body))["i0"] <= 525
        assert (await hits(session, {**body, "cache_salt": "mine"}))["i0"] == 0


async def test_affinity_sends_sessions_to_where_their_prefix_is():
    settings = {"router": {"policy": "prefix_affinity"}}
    async with pool(FakeVLLM(), FakeVLLM(), FakeVLLM(), **settings) as (session, _):
        places: dict[int, set[str]] = {}
        for turn in range(1, 4):
            for first in (1, 2, 3, 4):
                prompt = [first * 10_000 + n for n in range(turn * 160)]
                _, headers, _ = await post(session, {**BODY, "prompt": prompt})
                places.setdefault(first, set()).add(headers["x-goodput-instance"])
        assert [len(where) for where in places.values()] == [1] * 4


async def test_it_can_be_switched_off():
    settings = {"router": {"policy": "round_robin", "prefix": {"enabled": False}}}
    async with pool(FakeVLLM(), **settings) as (session, gateway):
        await post(session, BODY)
        assert await hits(session, BODY) == {"i0": 0}
        assert metric(gateway, "goodput_prompt_tokens_total", instance="i0") == 7
        assert metric(gateway, "goodput_prefix_hit_tokens_total", instance="i0") == 0


SIZES = {
    "metrics": FakeVLLM(cache_info=[{"block_size": 64, "num_gpu_blocks": 50}]),
    "hybrid": FakeVLLM(cache_info=[{"block_size": 64, "kv_cache_size_tokens": 3200}]),
    "ranks": FakeVLLM(cache_info=[{"block_size": 64, "kv_cache_size_tokens": 1600}] * 2),
    "info": FakeVLLM(
        info={"block_size": 64, "num_gpu_blocks": 90, "kv_tokens": 3200},
        cache_info=[{"block_size": 16, "num_gpu_blocks": 7}],
    ),
    "older plugin": FakeVLLM(info={"block_size": 64, "num_gpu_blocks": 50}),
    "configured": FakeVLLM(
        settings={"kv_tokens": 3200, "block_size": 64},
        cache_info=[{"block_size": 16, "num_gpu_blocks": 7}],
    ),
    "in part": FakeVLLM(
        settings={"kv_tokens": 3200}, cache_info=[{"block_size": 64, "num_gpu_blocks": 7}]
    ),
}


@pytest.mark.parametrize("source", SIZES)
async def test_the_size_of_a_cache_is_learned_when_its_instance_joins(source):
    async with pool(SIZES[source]) as (session, _):
        page = (await pool_page(session))["i0"]
        assert (page["kv_tokens"], page["block_size"], page["kv_events"]) == (3200, 64, None)
        await post(session, BODY)
        assert await hits(session, BODY) == {"i0": 576}  # nine whole blocks of 64 in 639 tokens
        for first in range(5):  # 3,200 other tokens: what was there before has gone
            await post(session, {**BODY, "prompt": [first * 10_000 + n for n in range(640)]})
        assert await hits(session, BODY) == {"i0": 0}


async def test_an_instance_that_tells_nothing_gets_defaults():
    async with pool(FakeVLLM()) as (session, _):
        page = (await pool_page(session))["i0"]
        assert (page["kv_tokens"], page["block_size"]) == (None, None)
        await post(session, BODY)
        assert await hits(session, BODY) == {"i0": ALL_BUT_LAST_BLOCK}


async def test_names_of_one_model_share_and_adapters_do_not():
    engine = FakeVLLM(aliases=("prod",), adapters=("sql",))
    async with pool(engine) as (session, _):
        await post(session, {**BODY, "model": "prod"})
        same = [BODY, {**BODY, "model": "prod"}, {"prompt": IDS}]
        assert [(await hits(session, b))["i0"] for b in same] == [ALL_BUT_LAST_BLOCK] * 3
        assert await hits(session, {**BODY, "model": "sql"}) == {"i0": 0}
        await post(session, {**BODY, "model": "sql"})
        assert await hits(session, {**BODY, "model": "sql"}) == {"i0": ALL_BUT_LAST_BLOCK}


async def test_an_instance_that_comes_back_begins_with_nothing():
    engine = FakeVLLM()
    async with pool(engine, FakeVLLM(), **ROUND_ROBIN) as (session, gateway):
        for body in (BODY, BODY, TEXT, TEXT):
            await post(session, body)
        assert min((await hits(session, BODY)).values()) == ALL_BUT_LAST_BLOCK
        engine.healthy = False
        await until(lambda: not gateway.router.instances["i0"].healthy)
        engine.healthy = True
        await until(lambda: gateway.router.instances["i0"].healthy)
        assert await hits(session, BODY) == {"i0": 0, "i1": ALL_BUT_LAST_BLOCK}
        found = await hits(session, TEXT)
        assert found["i0"] == 0 < found["i1"]


@pytest.mark.parametrize("stream", [False, True])
async def test_predicted_hits_are_held_against_what_the_instance_reports(stream):
    engine = FakeVLLM(prompt_tokens=640, cached_tokens=0)
    body = {**BODY, "stream": stream, "stream_options": {"include_usage": True}}
    async with pool(engine) as (session, gateway):

        def compared(kind):
            name = "goodput_prefix_compared_tokens_total"
            return metric(gateway, name, instance="i0", kind=kind)

        await post(session, body)
        assert [compared(k) for k in ("predicted", "cached", "error")] == [0, 0, 0]
        engine.cached_tokens = 600
        await post(session, body)
        assert [compared(k) for k in ("predicted", "cached", "error")] == [624, 600, 24]
        engine.cached_tokens = None  # told no more: nothing to compare
        await post(session, body)
        assert [compared(k) for k in ("predicted", "cached", "error")] == [624, 600, 24]
        assert metric(gateway, "goodput_prefix_hit_tokens_total", instance="i0") == 2 * 624
        assert metric(gateway, "goodput_prompt_tokens_total", instance="i0") == 3 * 640


def publishing(publisher, replay=True, **more):
    settings = {"kv_events": publisher.endpoint}
    if replay:
        settings["kv_events_replay"] = publisher.replay_endpoint
    return FakeVLLM(settings=settings, **more)


async def holds(session, body, tokens):
    """Wait until the only instance is believed to hold so many tokens of a prompt."""
    found = -1.0
    for _ in range(500):
        (found,) = (await hits(session, body)).values()
        if found == tokens:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{found} instead of {tokens}")


async def test_kv_events_tell_what_an_instance_holds():
    async with KvPublisher() as publisher, pool(publishing(publisher)) as (session, gateway):
        assert (await pool_page(session))["i0"]["kv_events"] == {"state": "waiting"}
        await publisher.subscribed()
        await post(session, BODY)
        assert await hits(session, BODY) == {"i0": 0}  # dispatches tell nothing of it
        chain = stored(IDS)
        await publisher.publish(chain)
        await holds(session, BODY, ALL_BUT_LAST_BLOCK)
        await publisher.publish(removed(chain["block_hashes"][10:]))
        await holds(session, BODY, 160)
        page = (await pool_page(session))["i0"]["kv_events"]
        assert (page["state"], page["blocks"], page["batches"]) == ("following", 10, 2)
        assert (page["stored"], page["removed"], page["gaps"]) == (40, 30, 0)

        def events(kind):
            return metric(gateway, "goodput_kv_events_total", instance="i0", kind=kind)

        assert (events("stored"), events("removed"), events("cleared")) == (40, 30, 0)
        assert metric(gateway, "goodput_kv_event_blocks", instance="i0") == 10
        await publisher.publish(CLEARED)
        await holds(session, BODY, 0)
        assert events("cleared") == 1


async def test_kv_events_of_aliases_and_adapters():
    async with KvPublisher() as publisher:
        engine = publishing(publisher, aliases=("prod",), adapters=("sql",))
        async with pool(engine) as (session, _):
            await publisher.subscribed()
            await publisher.publish(stored(IDS), stored(IDS[:320], lora_name="sql"))
            await holds(session, {**BODY, "model": "prod"}, ALL_BUT_LAST_BLOCK)
            await holds(session, {**BODY, "model": "sql"}, 320)


async def test_missed_events_put_only_the_token_keys_in_doubt():
    async with (
        KvPublisher() as publisher,
        pool(publishing(publisher, replay=False)) as (session, gateway),
    ):
        await publisher.subscribed()
        await post(session, TEXT)
        before = (await hits(session, TEXT))["i0"]
        assert before > 0
        await publisher.publish(stored(IDS))
        await holds(session, BODY, ALL_BUT_LAST_BLOCK)
        await publisher.publish(stored([1] * 32), lose=True)
        await publisher.publish(stored([2] * 32))
        await holds(session, BODY, 0)
        assert await hits(session, TEXT) == {"i0": before}
        name = "goodput_kv_events_total"
        assert metric(gateway, name, instance="i0", kind="gaps") == 1
        await publisher.publish(CLEARED)
        await holds(session, TEXT, 0)


async def test_an_instance_that_comes_back_is_asked_for_its_events_again():
    async with KvPublisher() as publisher:
        engine = publishing(publisher)
        async with pool(engine) as (session, gateway):
            await publisher.subscribed()
            await publisher.publish(stored(IDS))
            await holds(session, BODY, ALL_BUT_LAST_BLOCK)
            engine.healthy = False
            await until(lambda: not gateway.router.instances["i0"].healthy)
            publisher.restart()
            await publisher.publish(stored(IDS[:320]), lose=True)
            engine.healthy = True
            await until(lambda: gateway.router.instances["i0"].healthy)
            await holds(session, BODY, 320)


def test_news_of_instances_that_are_gone_are_ignored():
    router = Router(RouterConfig())
    keys = np.array([1, 2], dtype=np.uint64)
    router.on_kv_stored("nobody", keys)
    router.on_kv_removed("nobody", keys)
    router.on_kv_cleared("nobody")
    assert not router.instances
