# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Latency model: what a request would see on an instance, and what it would do to the requests booked there.

T = q + p·L_in + d(n)·L̂_out. The decode part is stretched by the prefills expected to arrive meanwhile, at the recent
rate; n is the number of sequences once the request has joined.
"""

from __future__ import annotations

import heapq

from vllm_goodput.predictor.base import LengthDistribution
from vllm_goodput.router.instance import Booking, InstanceState
from vllm_goodput.router.types import Prediction, RequestInfo

# At most this fraction of an instance's time is assumed to go to prefills of requests to come.
MAX_PREFILL_SHARE = 0.6
# For sums over many requests, whose errors cancel out.
MEDIAN = 0.5


def predict(
    instance: InstanceState, info: RequestInfo, output_len: float, now_s: float, quantile: float
) -> Prediction:
    """Latency of `info` if dispatched now with the given output length (tokens)."""
    speed = instance.speed
    sequences = min(instance.limit, len(instance.bookings) + 1)
    tpot_s = speed.decode_step_s(sequences) / (1.0 - prefill_share(instance, now_s))
    queue_s = (
        speed.overhead_s()
        + speed.prefill_token_s() * instance.queued_prefill(now_s)
        + _slot_wait_s(instance, tpot_s, now_s)
    )
    return Prediction(
        queue_s=queue_s,
        prefill_s=speed.prefill_token_s() * info.prompt_len,
        decode_s=tpot_s * max(0.0, output_len - 1.0),
        tpot_s=tpot_s,
        output_len=output_len,
        known=speed.known,
    )


def alone_s(instance: InstanceState, info: RequestInfo, output_len: float) -> float:
    """End-to-end latency on the instance if it were idle, seconds."""
    speed = instance.speed
    decode_s = speed.decode_step_s(1) * max(0.0, output_len - 1.0)
    return speed.overhead_s() + speed.prefill_token_s() * info.prompt_len + decode_s


def prefill_share(instance: InstanceState, now_s: float) -> float:
    """Fraction of the instance's time that arriving prefills take at the recent rate."""
    return min(MAX_PREFILL_SHARE, instance.speed.prefill_token_s() * instance.prompt_rate(now_s))


def harms(instance: InstanceState, info: RequestInfo, now_s: float, quantile: float) -> bool:
    """Impact check: would a booked request that can still make its SLO miss it because of `info`?"""
    speed = instance.speed
    count = len(instance.bookings)
    if count == 0:
        return False
    share = 1.0 - prefill_share(instance, now_s)
    before_s = speed.decode_step_s(min(instance.limit, count)) / share
    after_s = speed.decode_step_s(min(instance.limit, count + 1)) / share
    stall_s = speed.prefill_token_s() * info.prompt_len
    return any(
        _harmed(booking, before_s, after_s, stall_s, now_s, quantile)
        for booking in instance.bookings.values()
    )


def _harmed(
    booking: Booking, before_s: float, after_s: float, stall_s: float, now_s: float, quantile: float
) -> bool:
    slo = booking.info.slo
    if before_s <= slo.tpot_s < after_s:
        return True
    if slo.e2el_ms is None:
        return False
    left = booking.remaining(now_s, quantile)
    slack_s = booking.info.deadline_s - now_s
    return left * before_s <= slack_s < left * after_s + stall_s


def next_finish_s(instance: InstanceState, now_s: float, quantile: float) -> float:
    """When the next booked request is expected to finish; inf when none is booked."""
    tpot_s = instance.speed.decode_step_s(instance.running)
    return min(
        (now_s + tpot_s * b.remaining(now_s, quantile) for b in instance.bookings.values()),
        default=float("inf"),
    )


def _slot_wait_s(instance: InstanceState, tpot_s: float, now_s: float) -> float:
    """Wait for a free sequence, first come first served: the oldest bookings run, the others queue behind them."""
    if len(instance.bookings) < instance.limit:
        return 0.0
    left = [b.remaining(now_s, MEDIAN) for b in instance.bookings.values()]
    running = left[: instance.limit]
    heapq.heapify(running)
    for waiting in left[instance.limit :]:
        heapq.heapreplace(running, running[0] + waiting)
    return tpot_s * running[0]


def length_of(lengths: LengthDistribution, quantile: float) -> float:
    """The output length that must fit, tokens."""
    return max(1.0, lengths.quantile(quantile))
