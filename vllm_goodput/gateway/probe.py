# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A few small completions that teach the router the speed of an instance it has never used."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

import aiohttp

from vllm_goodput.gateway.meter import StreamMeter
from vllm_goodput.gateway.upstream import Upstream
from vllm_goodput.router.estimator import Sample, SpeedEstimator

SHORT_WORDS, LONG_WORDS = 12, 400
CONCURRENT = 4
WORDS = ("river", "stone", "cloud", "light", "table", "green", "seven", "paper", "music", "train")


@dataclass(frozen=True)
class Timing:
    """One probe's measurement; seconds and tokens."""

    ttft_s: float
    decode_s: float
    prompt_len: int
    output_len: int


async def probe(upstream: Upstream, model: str, speed: SpeedEstimator, timeout_s: float) -> bool:
    """Measure an idle instance: short and long prompts alone, then several at once.

    Returns:
        Whether it answered. Instances that serve no completions simply stay unmeasured.
    """
    rng = random.Random(upstream.name)
    try:
        async with asyncio.timeout(timeout_s):
            if await _one(upstream, model, rng, SHORT_WORDS, 4, timeout_s) is None:  # warm-up
                return False
            for _ in range(2):
                for words, output_len in ((SHORT_WORDS, 16), (LONG_WORDS, 4)):
                    timing = await _one(upstream, model, rng, words, output_len, timeout_s)
                    _learn(speed, timing, 1, timing.prompt_len if timing else 0)
            tasks = [
                _one(upstream, model, rng, SHORT_WORDS, 16, timeout_s) for _ in range(CONCURRENT)
            ]
            timings = await asyncio.gather(*tasks)
            together = sum(t.prompt_len for t in timings if t)
            for timing in timings:
                _learn(speed, timing, CONCURRENT, together)
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
    return speed.known


async def _one(
    upstream: Upstream,
    model: str,
    rng: random.Random,
    words: int,
    output_len: int,
    timeout_s: float,
) -> Timing | None:
    body = {
        "model": model,
        "prompt": " ".join(rng.choice(WORDS) for _ in range(words)),
        "max_tokens": output_len,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.monotonic()
    meter = StreamMeter()
    first_s: float | None = None
    last_s = started_s
    async with await upstream.complete(body, timeout_s) as response:
        if response.status != 200:
            return None
        async for chunk in response.content.iter_any():
            before = meter.events
            meter.feed(chunk)
            if meter.events > before:
                last_s = time.monotonic()
                first_s = first_s or last_s
    if first_s is None or not meter.done or meter.error:
        return None
    prompt_len = meter.prompt_len or words
    return Timing(first_s - started_s, last_s - first_s, prompt_len, meter.output_len)


def _learn(speed: SpeedEstimator, timing: Timing | None, sequences: int, prefill: int) -> None:
    if timing is None:
        return
    speed.add(Sample(timing.ttft_s, 1.0, prefill, 0.0, 0.0))
    steps = timing.output_len - 1
    if steps > 0:
        speed.add(Sample(timing.decode_s, 0.0, 0.0, steps, steps * sequences))
