# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A prefix index fed by a real engine's KV events knows exactly what its prefix cache holds.

Before each request the hits of its prompt are predicted from the index, and then held against the engine's own
usage.prompt_tokens_details.cached_tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager

import pytest

from tests.e2e.conftest import BLOCK_SIZE, clean_environ, post, publishing
from tests.fakes.kv_sink import Indexed
from vllm_goodput._C import PrefixIndex
from vllm_goodput.config import InstanceConfig
from vllm_goodput.gateway.kv_events import KvEventWatch, zmq_context
from vllm_goodput.gateway.prefix_keys import prefix_blocks
from vllm_goodput.router.prefix import token_blocks

pytestmark = pytest.mark.vllm

CACHE_BLOCKS = 40  # of one prompt at most half, so that prompts push each other out
MAX_LEN = 640
VOCAB = 259
QUIET_S = 0.4  # without events: the engine has told everything


class Held(Indexed):
    """Knows exactly what the engine holds, or fails."""

    def __init__(self) -> None:
        super().__init__(4 * CACHE_BLOCKS * BLOCK_SIZE // 16)

    def lost(self, instance) -> None:
        assert not len(self.index), "events were lost"

    def predict(self, prompt: list[int], salt: str | None = None) -> int:
        """Cached tokens of a prompt."""
        blocks = token_blocks(prompt, "tiny", salt)
        assert blocks is not None
        matched = self.index.match(blocks.hashes)
        return int(blocks.hit_tokens(matched, len(prompt), BLOCK_SIZE)[0])


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    """(URL, events, replay) of a stock vLLM with a small cache."""
    root = tmp_path_factory.mktemp("events")
    environ = clean_environ(VLLM_PLUGINS="lora_filesystem_resolver", VLLM_SERVER_DEV_MODE="1")
    with publishing(model, root, environ, blocks=CACHE_BLOCKS, max_len=MAX_LEN) as started:
        yield started


@asynccontextmanager
async def following(engine):
    url, events, replay = engine
    config = InstanceConfig(name="e", url=url, kv_events=events, kv_events_replay=replay)
    held, context = Held(), zmq_context()
    watch = KvEventWatch(config, held, "tiny", context)
    watch.start()
    try:
        while not watch.counters.batches:  # until the subscription has arrived
            await ask(url, random.choices(range(3, VOCAB), k=2 * BLOCK_SIZE), 1)
        await quiet(watch)
        yield watch, held
    finally:
        await watch.stop()
        context.destroy(linger=0)


async def quiet(watch: KvEventWatch) -> None:
    """Wait until the engine's last events have come."""
    seen = -1
    while seen != watch.counters.batches:
        seen = watch.counters.batches
        await asyncio.sleep(QUIET_S)


async def ask(url: str, prompt: list[int], output_len: int, salt: str | None = None):
    """(tokens that the engine found in its cache, tokens that it generated)."""
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": output_len,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if salt is not None:
        body["cache_salt"] = salt
    status, _, raw = await asyncio.to_thread(post, f"{url}/v1/completions", body)
    assert status == 200, raw
    answer = json.loads(raw)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached, answer["choices"][0]["token_ids"]


def prompts(rng: random.Random, count: int):
    """(prompt, salt) of new, repeated, diverging, longer and shorter prompts."""
    known: list[tuple[list[int], str | None]] = []
    for _ in range(count):
        kind = rng.choice(["new", "again", "diverging", "longer", "shorter"]) if known else "new"
        prompt, salt = rng.choice(known[-8:]) if known else ([], None)
        if kind == "new":
            prompt, salt = [], rng.choice([None, None, "salt"])
        if kind in ("diverging", "shorter"):
            prompt = prompt[: rng.randrange(1, len(prompt) + 1)]
        if kind in ("new", "diverging", "longer"):
            prompt = prompt + rng.choices(range(3, VOCAB), k=rng.randrange(1, 220))
        # Often of whole blocks, where the last one is computed again and held twice.
        whole = len(prompt) // BLOCK_SIZE * BLOCK_SIZE
        prompt = prompt[: whole if whole and rng.random() < 0.4 else MAX_LEN - 80]
        known.append((prompt, salt))
        yield prompt, salt


async def test_predicted_hits_are_the_engines_own(engine):
    url = engine[0]
    rng = random.Random(7)
    removed_before_end = hits = 0
    async with following(engine) as (watch, held):
        for prompt, salt in prompts(rng, 60):
            predicted = held.predict(prompt, salt)
            output_len = rng.choice([1, 3, 40])
            cached, generated = await ask(url, prompt, output_len, salt)
            assert cached == predicted
            await quiet(watch)
            # What was generated is cached too, but for the last token, which no step has computed.
            after = held.predict([*prompt, *generated], salt)
            whole = (len(prompt) + output_len - 1) // BLOCK_SIZE * BLOCK_SIZE
            assert after == whole
            hits += cached > 0
            removed_before_end = watch.counters.removed
        assert hits > 10
        assert removed_before_end > 2 * CACHE_BLOCKS
        assert watch.blocks < CACHE_BLOCKS
        counters = watch.counters
        assert (counters.gaps, counters.malformed, counters.unkeyed) == (0, 0, 0)


async def test_equal_prompts_at_the_same_time(engine):
    url = engine[0]
    rng = random.Random(8)
    async with following(engine) as (watch, held):
        for length in (2 * BLOCK_SIZE, 3 * BLOCK_SIZE + 5):
            prompt = rng.choices(range(3, VOCAB), k=length)
            for _ in range(3):
                await asyncio.gather(*(ask(url, prompt, 2) for _ in range(4)))
            await quiet(watch)
            for other in range(6):
                predicted = held.predict(prompt)
                assert predicted == (await ask(url, prompt, 1))[0]
                await ask(url, rng.choices(range(3, VOCAB), k=MAX_LEN // 2 + other), 1)
                await quiet(watch)


def test_estimates_of_chats_are_close_and_not_too_high(engine):
    """Chats are known as text only: what the index of text says, after the engine's cache was emptied."""
    url, index = engine[0], PrefixIndex()
    index.add_instance(0, 1000)
    assert post(f"{url}/reset_prefix_cache", {})[0] == 200
    system = "Answer with what the table of singers says and nothing else. " * 4
    questions = [
        "Who is the oldest?",
        "Who is the youngest, and how old?",
        "Who is the oldest?",
        "Why?",
    ]
    estimated = []
    for question in questions:
        turns = [("system", system), ("user", "Here it is: " + "name, age; " * 12 + question)]
        body = {"messages": [{"role": role, "content": text} for role, text in turns]}
        status, _, raw = post(
            f"{url}/v1/chat/completions", {**body, "model": "tiny", "max_tokens": 1}
        )
        assert status == 200, raw
        usage = json.loads(raw)["usage"]
        prompt_len, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        blocks = prefix_blocks(body, True, prompt_len, "tiny")
        assert blocks is not None
        hits = int(blocks.hit_tokens(index.match(blocks.hashes), prompt_len, BLOCK_SIZE)[0])
        index.insert(0, blocks.hashes)
        assert 0 <= cached - hits <= 64 + BLOCK_SIZE
        estimated.append(hits)
    assert estimated[0] == 0
    assert min(estimated[1:]) > len(system)


async def test_a_late_start_learns_from_the_replay_and_a_reset_empties(engine):
    url = engine[0]
    prompt = random.Random(9).choices(range(3, VOCAB), k=200)
    await ask(url, prompt, 1)
    async with following(engine) as (watch, held):
        assert held.predict(prompt) == 192
        assert (await ask(url, prompt, 1))[0] == 192
        status, _, raw = await asyncio.to_thread(post, f"{url}/reset_prefix_cache", {})
        assert status == 200, raw
        # The engine tells with its next step.
        assert (await ask(url, prompt, 1))[0] == 0
        await quiet(watch)
        assert held.predict(prompt) == 192
        assert held.cleared_times >= 1
        assert len(held.index) == 200 // BLOCK_SIZE * BLOCK_SIZE // 16
