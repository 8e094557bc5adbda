# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A gateway over a real engine: it learns the size of its cache, and predicts what is in it.

Predictions are held against the engine's own usage.prompt_tokens_details.cached_tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.e2e.conftest import BLOCK_SIZE, clean_environ, publishing
from tests.fakes.asking import SECRET, hits, pool_page
from tests.fakes.pool import metric, pool, post

pytestmark = pytest.mark.vllm

CACHE_BLOCKS, MAX_LEN = 200, 1024
CACHE_TOKENS = CACHE_BLOCKS * BLOCK_SIZE
VOCAB = 259
WORDS = ("river", "stone", "cloud", "light", "table", "green", "seven", "paper", "music", "train")


@dataclass
class Engine:
    """A running vLLM, in the shape of FakeVLLM."""

    url: str
    settings: dict[str, Any] = field(default_factory=dict)
    healthy: bool = True

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory):
    """(URL, events, replay) of a vLLM with the plugin and a small cache."""
    root = tmp_path_factory.mktemp("prefix")
    environ = clean_environ(GOODPUT_POOL_SECRET=SECRET)
    with publishing(
        model, root, environ, "--plugin", "goodput", blocks=CACHE_BLOCKS, max_len=MAX_LEN
    ) as started:
        yield started


def compared(gateway, kind: str) -> float:
    return metric(gateway, "goodput_prefix_compared_tokens_total", instance="i0", kind=kind)


async def quiet(gateway) -> None:
    """Wait until the engine has told everything."""
    last = -1.0
    while (
        now := metric(gateway, "goodput_kv_events_total", instance="i0", kind="batches")
    ) != last:
        last = now
        await asyncio.sleep(0.4)


@pytest.mark.parametrize("source", ["plugin", "metrics"])
async def test_the_size_of_the_cache_is_the_engines(engine, source, monkeypatch):
    secret = SECRET if source == "plugin" else "another"  # a stranger sees a stock vLLM
    monkeypatch.setenv("GOODPUT_POOL_SECRET", secret)
    monkeypatch.setattr("tests.fakes.asking.HEADERS", {"x-goodput-pool-secret": secret})
    async with pool(Engine(engine[0])) as (session, _):
        page = (await pool_page(session))["i0"]
        assert (page["info"] is None) == (source == "metrics")
        assert page["block_size"] == BLOCK_SIZE
        assert page["kv_tokens"] == pytest.approx(CACHE_TOKENS, rel=0.02)


async def test_with_kv_events_hits_of_token_ids_are_exact(engine, monkeypatch):
    monkeypatch.setenv("GOODPUT_POOL_SECRET", SECRET)
    url, events, replay = engine
    settings = {"kv_events": events, "kv_events_replay": replay}
    rng = random.Random(3)
    async with pool(Engine(url, settings)) as (session, gateway):
        known: list[list[int]] = [[]]
        for _ in range(40):
            start = rng.choice(known[-6:])
            prompt = start[: rng.randrange(len(start) + 1)] + rng.choices(range(3, VOCAB), k=300)
            prompt = prompt[: MAX_LEN - 64]
            known.append(prompt)
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
            await quiet(gateway)
            predicted = (await hits(session, body))["i0"]
            status, _, answer = await post(session, body)
            assert status == 200, answer
            usage = json.loads(answer)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == predicted
        assert compared(gateway, "error") == 0
        assert compared(gateway, "predicted") == compared(gateway, "cached") > 1000
        page = (await pool_page(session))["i0"]["kv_events"]
        assert (page["state"], page["gaps"], page["malformed"]) == ("following", 0, 0)
        assert page["removed"] > 0


async def chat(session, rng: random.Random, turns: int) -> None:
    messages = [{"role": "system", "content": " ".join(rng.choices(WORDS, k=20))}]
    for _ in range(turns):
        messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=12))})
        body = {"model": "tiny", "messages": messages, "max_tokens": 4}
        status, _, answer = await post(session, body, path="/v1/chat/completions")
        assert status == 200, answer
        content = json.loads(answer)["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": content or ""})


async def test_hits_of_growing_chats_are_estimated_rather_low(engine, monkeypatch):
    monkeypatch.setenv("GOODPUT_POOL_SECRET", SECRET)
    rng = random.Random(4)
    async with pool(Engine(engine[0])) as (session, gateway):
        for _ in range(80):  # this tokeniser has a token per character: that must be learned first
            await chat(session, rng, 1)
        kinds = ("predicted", "cached", "error")
        before = [compared(gateway, kind) for kind in kinds]
        for _ in range(6):
            await chat(session, rng, 4)
        after = [compared(gateway, kind) for kind in kinds]
        predicted, cached, error = (b - a for a, b in zip(before, after, strict=True))
        assert cached > 2000
        assert 0.6 * cached < predicted <= cached
        assert error < 0.4 * cached
