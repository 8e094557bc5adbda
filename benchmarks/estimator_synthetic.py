# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Made-up responses of the shipped device profiles: how soon the estimator is right again after a change of speed.

Responses have noise, prefixes that were cached unforeseen (a tenth of the prefill time) and stalls of up to half a
minute. Right means that the 90th percentile of the error over a panel of requests, against the noiseless truth without
cached prefixes, is at most 10 % and stays there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_goodput.emulation import DeviceProfile, load_profile, profile_names
from vllm_goodput.router.estimator import Sample, SpeedEstimator

RIGHT, QUANTILE = 0.10, 0.9
PANEL, BEFORE, AFTER = 60, 150, 80
HTTP_S = 0.005
CACHED_PREFILL, STALL_S = 0.1, 30.0


@dataclass(frozen=True)
class Conditions:
    """What responses are like.

    Args:
        name: for people.
        noise: standard deviation of the log of decode times; first tokens have twice as much.
        cached: fraction of prompts whose prefix was cached.
        stalls: fraction of times that are stalled.
        streamed: whether the first token's time is known.
    """

    name: str
    noise: float = 0.05
    cached: float = 0.0
    stalls: float = 0.0
    streamed: bool = True


USUAL = Conditions("20 % cached prefixes, 2 % stalls", cached=0.2, stalls=0.02)
CONDITIONS = (
    Conditions("noise of 5 % alone"),
    USUAL,
    Conditions("40 % cached prefixes, 2 % stalls", cached=0.4, stalls=0.02),
    Conditions("the same as 20 %, not streamed", cached=0.2, stalls=0.02, streamed=False),
)


@dataclass(frozen=True)
class Request:
    """Lengths in tokens, and the mean number of sequences that run beside it, itself included."""

    prompt_len: int
    output_len: int
    sequences: float


@dataclass(frozen=True)
class Device:
    """A device profile, some times as slow."""

    profile: DeviceProfile
    factor: float

    def ttft_s(self, request: Request, prefill: float = 1.0) -> float:
        """Time to first token when the fraction `prefill` of the prompt must be computed."""
        tokens = prefill * request.prompt_len
        step_s = self.profile.base_s + tokens * self.profile.per_prefill_token_s
        return self.factor * (HTTP_S + step_s)

    def decode_s(self, request: Request) -> float:
        """Time from the first to the last token."""
        step_s = self.profile.base_s + request.sequences * self.profile.per_running_seq_s
        return self.factor * step_s * (request.output_len - 1)


def convergence(
    conditions: Conditions, factor: float, seeds: Sequence[int], profiles: Sequence[str] = ()
) -> list[int]:
    """Responses after a change of speed until predictions are right and stay so, on each device and seed."""
    return [
        _responses(load_profile(name), conditions, factor, random.Random(f"{name} {seed}"))
        for name in profiles or profile_names()
        for seed in seeds
    ]


def study(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Convergence under all conditions, for a device that slows or speeds up tenfold."""
    rows = []
    for conditions in CONDITIONS:
        for factor in (10.0, 0.1):
            found = convergence(conditions, factor, seeds)
            rows.append(
                {
                    "part": "change of speed",
                    "conditions": conditions.name,
                    "times_as_slow": factor,
                    "runs": len(found),
                    "responses_median": float(np.median(found)),
                    "responses_p90": float(np.quantile(found, 0.9)),
                    "responses_max": max(found),
                }
            )
    return rows


def _responses(
    profile: DeviceProfile, conditions: Conditions, factor: float, rng: random.Random
) -> int:
    estimator = SpeedEstimator()
    panel = [_request(rng) for _ in range(PANEL)]
    for _ in range(BEFORE):
        _respond(estimator, Device(profile, 1.0), conditions, rng)
    device, wrong = Device(profile, factor), 0
    for count in range(1, AFTER + 1):
        _respond(estimator, device, conditions, rng)
        if panel_error(estimator, device, panel) > RIGHT:
            wrong = count
    return wrong + 1


def panel_error(estimator: SpeedEstimator, device: Device, panel: Sequence[Request]) -> float:
    """90th percentile of the relative error of predicted end-to-end latencies."""
    found = []
    for request in panel:
        decode_s = estimator.decode_offset_s() + (
            estimator.decode_step_s(request.sequences) * (request.output_len - 1)
        )
        ttft_s = estimator.overhead_s() + estimator.prefill_token_s() * request.prompt_len
        true_s = device.ttft_s(request) + device.decode_s(request)
        found.append(abs((ttft_s + max(0.0, decode_s)) / true_s - 1.0))
    return float(np.quantile(found, QUANTILE))


def _respond(
    estimator: SpeedEstimator, device: Device, conditions: Conditions, rng: random.Random
) -> None:
    request = _request(rng)
    prefill = CACHED_PREFILL if rng.random() < conditions.cached else 1.0
    ttft_s = device.ttft_s(request, prefill) * math.exp(rng.gauss(0.0, 2 * conditions.noise))
    decode_s = device.decode_s(request) * math.exp(rng.gauss(0.0, conditions.noise))
    ttft_s += STALL_S * rng.random() * (rng.random() < conditions.stalls)
    decode_s += STALL_S * rng.random() * (rng.random() < conditions.stalls)
    steps = request.output_len - 1
    work = (steps, steps * request.sequences)
    if conditions.streamed:
        estimator.add(Sample(ttft_s, 1.0, request.prompt_len, 0.0, 0.0))
        estimator.add(Sample(decode_s, 0.0, 0.0, *work))
    else:
        estimator.add(Sample(ttft_s + decode_s, 1.0, request.prompt_len, *work))


def _request(rng: random.Random) -> Request:
    prompt_len = min(8000, max(4, int(rng.lognormvariate(math.log(400), 1.0))))
    output_len = min(2000, max(2, int(rng.lognormvariate(math.log(150), 0.9))))
    return Request(prompt_len, output_len, rng.uniform(1.0, 24.0))
