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
    """One probe's measurement: when it was sent, when each event came (seconds), and its lengths (tokens)."""

    sent_s: float
    events_s: tuple[float, ...]
    prompt_len: int
    output_len: int


async def probe(upstream: Upstream, model: str, speed: SpeedEstimator, timeout_s: float) -> bool:
    """Measure an idle instance: short and long prompts alone, then several at once.

    Returns:
        Whether it answered. Instances that serve no completions simply stay unmeasured.
    """
    rng = random.Random()  # other prompts every time, lest a prefix cache speeds them up
    try:
        async with asyncio.timeout(timeout_s):
            if await _one(upstream, model, rng, SHORT_WORDS, 4, timeout_s) is None:  # warm-up
                return False
            for _ in range(2):
                for words, output_len in ((SHORT_WORDS, 16), (LONG_WORDS, 4)):
                    timing = await _one(upstream, model, rng, words, output_len, timeout_s)
                    learn_alone(speed, timing)
            tasks = [
                _one(upstream, model, rng, SHORT_WORDS, 24, timeout_s) for _ in range(CONCURRENT)
            ]
            learn_together(speed, [t for t in await asyncio.gather(*tasks) if t])
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
    events_s: list[float] = []
    async with await upstream.complete(body, timeout_s) as response:
        if response.status != 200:
            return None
        async for chunk in response.content.iter_any():
            before = meter.events
            meter.feed(chunk)
            if meter.events > before:
                events_s.append(time.monotonic())
    if not events_s or not meter.done or meter.error:
        return None
    prompt_len = meter.prompt_len or words
    return Timing(started_s, tuple(events_s), prompt_len, meter.output_len)


def learn_alone(speed: SpeedEstimator, timing: Timing | None) -> None:
    """A probe that ran alone."""
    if timing is None:
        return
    first_s, last_s = timing.events_s[0], timing.events_s[-1]
    speed.add(Sample(first_s - timing.sent_s, 1.0, timing.prompt_len, 0.0, 0.0))
    steps = timing.output_len - 1
    if steps > 0:
        speed.add(Sample(last_s - first_s, 0.0, 0.0, steps, steps))


def learn_together(speed: SpeedEstimator, timings: list[Timing]) -> None:
    """Probes that ran at once: only the span in which all of them were decoding counts."""
    if len(timings) < 2:
        return
    start_s = max(t.events_s[0] for t in timings)
    end_s = min(t.events_s[-1] for t in timings)
    for timing in timings:
        inside = [at_s for at_s in timing.events_s if start_s <= at_s <= end_s]
        steps = len(inside) - 1
        if steps > 0:
            span_s = inside[-1] - inside[0]
            speed.add(Sample(span_s, 0.0, 0.0, steps, steps * len(timings)))
