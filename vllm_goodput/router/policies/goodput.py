# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The default policy: feasible, harming no accepted request, with room for arrivals to come.

Among the instances where the request meets its SLO and no booked request would miss one because of it, it takes the
one with the lowest occupancy plus a small weight on T / deadline. If there is none, it holds the request as long as
an idle instance could still serve it in time, then rejects it. A request without SLO goes where it harms least and
is never rejected.
"""

from __future__ import annotations

import math

from vllm_goodput.router.latency import alone_s, harms, next_finish_s
from vllm_goodput.router.policies.base import Candidate, Policy, Query, explorable, fits
from vllm_goodput.router.types import Decision, Dispatch, Hold, Reject

URGENCY_WEIGHT = 0.1
MIN_HOLD_S = 0.01
MAX_HOLD_S = 0.5


class Goodput(Policy):
    """See the module's docstring."""

    name = "goodput"

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        if not query.info.slo:
            return self._best_effort(query)
        feasible = [c for c in query.candidates if self._feasible(query, c)]
        if feasible:
            return _dispatch(min(feasible, key=lambda c: self._score(query, c)))
        if self._hopeless(query):
            return Reject("infeasible", "no instance can meet the request's SLO in the time left")
        return Hold(query.now_s + self._wait_s(query))

    def _feasible(self, query: Query, candidate: Candidate) -> bool:
        if not candidate.prediction.known:
            return explorable(candidate)
        return fits(
            query.info, candidate.prediction, query.now_s, self.config.margin
        ) and not self._harms(query, candidate)

    def _harms(self, query: Query, candidate: Candidate) -> bool:
        return harms(candidate.instance, query.info, query.now_s, self.config.length_quantile)

    def _score(self, query: Query, candidate: Candidate) -> float:
        left_s = query.info.deadline_s - query.now_s
        urgency = candidate.prediction.e2el_s / left_s if math.isfinite(left_s) else 0.0
        return candidate.instance.occupancy + URGENCY_WEIGHT * urgency

    def _hopeless(self, query: Query) -> bool:
        """Whether even an idle instance would be too late."""
        return all(c.prediction.known and not self._fits_alone(query, c) for c in query.candidates)

    def _fits_alone(self, query: Query, candidate: Candidate) -> bool:
        speed, info = candidate.instance.speed, query.info
        total_s = alone_s(candidate.instance, info, candidate.prediction.output_len)
        first_s = alone_s(candidate.instance, info, 1.0)
        return (
            query.now_s + total_s <= info.deadline_s
            and query.now_s + first_s <= info.ttft_deadline_s
            and speed.decode_step_s(1) <= info.slo.tpot_s
        )

    def _wait_s(self, query: Query) -> float:
        """Until the next expected finish anywhere, within bounds."""
        quantile = self.config.length_quantile
        soonest_s = min(next_finish_s(c.instance, query.now_s, quantile) for c in query.candidates)
        return min(MAX_HOLD_S, max(MIN_HOLD_S, soonest_s - query.now_s))

    def _best_effort(self, query: Query) -> Decision:
        def key(candidate: Candidate) -> tuple[bool, float]:
            return self._harms(query, candidate), candidate.instance.occupancy

        return _dispatch(min(query.candidates, key=key))


def _dispatch(candidate: Candidate) -> Dispatch:
    return Dispatch(candidate.instance.name, candidate.prediction)
