# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The default policy: likely to be in time, harming no accepted request, with room for arrivals to come.

For every instance it takes the probability that the request meets its SLO there, from the predicted distribution of
its output length. That chance must be worth its price: more where the instance is busy and the request is large, so
that under overload an instance serves many small requests rather than few large ones. No booked request may miss its
SLO because of the new one (impact check). Among the instances whose chance is close to the best it takes the one with
the lowest occupancy, plus a small weight on T / deadline. If there is none, it holds the request while an idle
instance would still have a fair chance, then rejects it. A request without SLO goes where it harms least and is never
rejected.
"""

from __future__ import annotations

import math

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.latency import alone_s, harms, next_finish_s
from vllm_goodput.router.policies.base import Candidate, Policy, Query, explorable
from vllm_goodput.router.types import Decision, Hold, Reject

URGENCY_WEIGHT = 0.1
# Chance asked of any request on an idle instance, and what full occupancy adds for a request of average size.
MIN_CHANCE = 0.1
OCCUPANCY_PRICE = 0.6
# Chances this close to the best count as equal.
CHANCE_TOLERANCE = 0.03
# A request is held only while some idle instance would give it this chance.
FAIR_CHANCE = 0.3
MIN_HOLD_S, MAX_HOLD_S = 0.01, 0.25
# A request without a deadline is held this long at most, seconds; then it goes where it harms least.
MAX_OPEN_WAIT_S = 10.0
# Quantile of the remaining lengths of booked requests in the impact check.
IMPACT_QUANTILE = 0.5
SIZE_DECAY = 0.98


class Goodput(Policy):
    """See the module's docstring."""

    name = "goodput"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._mean_size_s: dict[str, float] = {}

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        if not query.info.slo or _waited_enough(query):
            return self._best_effort(query)
        worthy = [(chance, c) for c in query.candidates if (chance := self._worth(query, c)) > 0]
        safe = [(chance, c) for chance, c in worthy if not _harms(query, c)]
        if safe:
            enough = max(chance for chance, _ in safe) - CHANCE_TOLERANCE
            best = min(
                (c for chance, c in safe if chance >= enough), key=lambda c: _score(query, c)
            )
            return best.dispatch()
        if not any(_fair_alone(query, c) for c in query.candidates):
            return Reject("infeasible", "no instance can meet the request's SLO in the time left")
        return Hold(query.now_s + _wait_s(query))

    def _worth(self, query: Query, candidate: Candidate) -> float:
        """The chance of success on the instance if it is worth its price there, else 0."""
        if not candidate.prediction.known:
            return float(explorable(candidate))
        size = self._relative_size(candidate)
        stretch = 1.0 + self.config.margin
        prediction = candidate.prediction
        chance = _chance(query, prediction.ttft_s * stretch, prediction.tpot_s * stretch)
        occupancy = min(1.0, candidate.instance.occupancy)
        price = MIN_CHANCE + OCCUPANCY_PRICE * occupancy * math.sqrt(size)
        return chance if chance >= price else 0.0

    def _relative_size(self, candidate: Candidate) -> float:
        """The share of the instance's time that the request takes, relative to the running mean of all requests."""
        prediction, instance = candidate.prediction, candidate.instance
        size_s = prediction.prefill_s + prediction.decode_s / max(1.0, instance.limit / 2)
        mean_s = self._mean_size_s.get(instance.name, size_s)
        mean_s = self._mean_size_s[instance.name] = SIZE_DECAY * mean_s + (1 - SIZE_DECAY) * size_s
        return size_s / mean_s if mean_s > 0 else 1.0

    def _best_effort(self, query: Query) -> Decision:
        def key(candidate: Candidate) -> tuple[bool, float]:
            return _harms(query, candidate), candidate.instance.occupancy

        return min(query.candidates, key=key).dispatch()


def _waited_enough(query: Query) -> bool:
    """Whether a request that has only a TPOT objective, so nothing ends its wait, was held long enough."""
    info = query.info
    open_ended = math.isinf(info.deadline_s) and math.isinf(info.ttft_deadline_s)
    return open_ended and query.now_s - info.arrival_s > MAX_OPEN_WAIT_S


def _chance(query: Query, ttft_s: float, tpot_s: float) -> float:
    """Probability that every objective is met with these times per request and per token."""
    info = query.info
    if query.now_s + ttft_s > info.ttft_deadline_s or tpot_s > info.slo.tpot_s:
        return 0.0
    left_s = info.deadline_s - query.now_s - ttft_s
    if math.isinf(left_s):
        return 1.0
    return query.lengths.cdf(1.0 + left_s / tpot_s) if left_s >= 0 else 0.0


def _fair_alone(query: Query, candidate: Candidate) -> bool:
    """Whether the request would have a fair chance if the instance were idle."""
    instance = candidate.instance
    if not candidate.prediction.known:
        return True
    first_s = alone_s(instance, query.info, 1.0)
    return _chance(query, first_s, instance.speed.decode_step_s(1)) >= FAIR_CHANCE


def _harms(query: Query, candidate: Candidate) -> bool:
    return harms(candidate.instance, query.info, query.now_s, IMPACT_QUANTILE)


def _score(query: Query, candidate: Candidate) -> float:
    left_s = query.info.deadline_s - query.now_s
    urgency = candidate.prediction.e2el_s / left_s if math.isfinite(left_s) else 0.0
    return candidate.instance.occupancy + URGENCY_WEIGHT * urgency


def _wait_s(query: Query) -> float:
    """Until the next expected finish anywhere, within bounds."""
    soonest_s = min(
        next_finish_s(c.instance, query.now_s, IMPACT_QUANTILE) for c in query.candidates
    )
    return min(MAX_HOLD_S, max(MIN_HOLD_S, soonest_s - query.now_s))
