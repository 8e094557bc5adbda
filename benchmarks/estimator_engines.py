# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Answers of simulated engines with the shipped device profiles: waiting, batching, chunked prefill and prefix caching
as in vLLM's scheduler.

What a router cannot know on arrival, above all the requests to come, makes most of the error here: the figures are for
comparison between methods, not with the measured instances'.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.estimator_data import Answer
from vllm_goodput.emulation import DeviceProfile, load_profile
from vllm_goodput.sim.engine import Engine
from vllm_goodput.sim.sequence import Seq
from vllm_goodput.sim.spec import SimInstance

HTTP_S = 0.004
BLOCK = 16
BATCH = 32  # sequences at which `load` is counted
MEAN_OF_LOGNORMAL = (math.exp(0.5), math.exp(0.405))  # relative to the median, of the lengths drawn


@dataclass(frozen=True)
class Scenario:
    """What an engine is given.

    Args:
        name: for people.
        load: arrivals relative to what the device could serve.
        prompt_len, output_len: medians, tokens.
        again: fraction of prompts that begin as an earlier one did, which the router is not told.
        slow: the middle third is so many times as slow.
    """

    name: str
    load: float
    prompt_len: int = 300
    output_len: int = 120
    again: float = 0.0
    slow: float = 1.0


SCENARIOS = (
    Scenario("load 0.15", 0.15),
    Scenario("load 0.5", 0.5),
    Scenario("load 0.8", 0.8),
    Scenario("load 0.4, 35 % prompts seen before", 0.4, again=0.35),
    Scenario("load 0.4, short prompts", 0.4, prompt_len=60, output_len=250),
    Scenario("load 0.03, tenfold slowdown meanwhile", 0.03, slow=10.0),
)


def answers(device: str, scenario: Scenario, count: int, seed: int) -> list[Answer]:
    """What an engine of this device answers to `count` requests."""
    profile = load_profile(device)
    rng = random.Random(f"{device} {scenario.name} {seed}")
    engine = Engine(SimInstance(name=device, profile=profile, block_size=BLOCK))
    requests = _requests(profile, scenario, count, rng)
    changes = [(requests[count // 3][0], scenario.slow), (requests[2 * count // 3][0], 1.0)]
    first_s, last_s = dict[Seq, float](), dict[Seq, float]()

    def run(until_s: float) -> None:
        while engine.next_s < math.inf and engine.next_s <= until_s:
            for output in engine.advance(engine.next_s):
                if output.first:
                    first_s[output.seq] = output.at_s
                if output.last:
                    last_s[output.seq] = output.at_s

    for arrival_s, seq in requests:
        run(arrival_s + HTTP_S)
        while changes and changes[0][0] <= arrival_s:
            engine.set_slowdown(changes.pop(0)[1], arrival_s + HTTP_S)
        engine.submit(seq, arrival_s + HTTP_S)
    run(math.inf)
    return [
        Answer(at_s, seq.prompt_len, seq.output_len, first_s[seq] - at_s, last_s[seq] - at_s)
        for at_s, seq in requests
    ]


def _requests(
    profile: DeviceProfile, scenario: Scenario, count: int, rng: random.Random
) -> list[tuple[float, Seq]]:
    at_s, rate, made = 0.0, _rate(profile, scenario), list[tuple[float, Seq]]()
    for number in range(count):
        at_s += rng.expovariate(rate)
        prompt_len = min(8000, max(4, int(rng.lognormvariate(math.log(scenario.prompt_len), 1.0))))
        output_len = min(2000, max(2, int(rng.lognormvariate(math.log(scenario.output_len), 0.9))))
        keys = tuple(range(number << 20, (number << 20) + prompt_len // BLOCK))
        if made and rng.random() < scenario.again:
            keys = _continued(made, keys, rng)
        made.append((at_s, Seq(prompt_len, output_len, keys, (number << 20) + (1 << 19))))
    return made


def _continued(
    made: Sequence[tuple[float, Seq]], keys: tuple[int, ...], rng: random.Random
) -> tuple[int, ...]:
    """Begin like a recent prompt."""
    earlier = tuple(made[-1 - rng.randrange(min(20, len(made)))][1].keys)
    shared = min(len(earlier), len(keys))
    return (*earlier[:shared], *keys[shared:])


def _rate(profile: DeviceProfile, scenario: Scenario) -> float:
    prompt, output = MEAN_OF_LOGNORMAL
    token_s = profile.base_s / BATCH + profile.per_running_seq_s
    prefill_s = profile.per_prefill_token_s * scenario.prompt_len * prompt
    return scenario.load / (prefill_s + token_s * scenario.output_len * output)
