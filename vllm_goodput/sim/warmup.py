# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The gateway's speed probes (gateway/probe.py) on a simulated engine of its own."""

from __future__ import annotations

from vllm_goodput.gateway.probe import (
    CONCURRENT,
    LONG_WORDS,
    SHORT_WORDS,
    Timing,
    learn_alone,
    learn_together,
)
from vllm_goodput.router.estimator import SpeedEstimator
from vllm_goodput.sim.engine import Engine
from vllm_goodput.sim.sequence import Seq
from vllm_goodput.sim.spec import Overheads, SimInstance


def measure(
    spec: SimInstance, overheads: Overheads, word_tokens: float = 1.0, slowdown: float = 1.0
) -> SpeedEstimator:
    """What the gateway's probes would find on the idle instance.

    Args:
        spec: the instance.
        overheads: of HTTP.
        word_tokens: tokens per word of the probes' prompts.
        slowdown: factor on its step times at the moment.
    """
    speed = SpeedEstimator()
    short, long = (max(1, round(words * word_tokens)) for words in (SHORT_WORDS, LONG_WORDS))
    for _ in range(2):
        for prompt_len, output_len in ((short, 16), (long, 4)):
            for timing in _run(spec, overheads, slowdown, prompt_len, output_len, 1):
                learn_alone(speed, timing)
    learn_together(speed, _run(spec, overheads, slowdown, short, 24, CONCURRENT))
    return speed


def _run(
    spec: SimInstance,
    overheads: Overheads,
    slowdown: float,
    prompt_len: int,
    output_len: int,
    count: int,
) -> list[Timing]:
    """Probes sent at the same moment to an engine that has seen none of them; none if they do not fit into it."""
    engine = Engine(spec, macro=False)  # every token's time is wanted
    engine.slowdown = slowdown
    probes = [Seq(prompt_len, output_len) for _ in range(count)]
    if not engine.fits(probes[0]):
        return []
    events_s: list[list[float]] = [[] for _ in probes]
    submitted_s = overheads.submit_s(prompt_len)
    for seq in probes:
        engine.submit(seq, submitted_s)
    while not all(seq.gone for seq in probes):
        now_s = engine.next_s
        before = [len(events) for events in events_s]
        engine.advance(now_s)
        for seq, events, known in zip(probes, events_s, before, strict=True):
            made = seq.output_len if seq.gone else engine.tokens(seq, now_s)
            events += [now_s + overheads.token_s] * (made - known)
    return [Timing(0.0, tuple(events), prompt_len, output_len) for events in events_s]
