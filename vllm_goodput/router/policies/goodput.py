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
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.policies.base import Policy, explorable
from vllm_goodput.router.query import Query
from vllm_goodput.router.rectify import DeadlineRectifier
from vllm_goodput.router.types import Decision, Hold, Migration, Reject

if TYPE_CHECKING:
    from vllm_goodput.router.router import Router

Vector = npt.NDArray[np.float64]

URGENCY_WEIGHT = 0.1
# Chance asked of any request on an idle instance, and what full occupancy adds for a request of average size.
MIN_CHANCE = 0.1
OCCUPANCY_PRICE = 0.6
# Chances this close to the best count as equal.
CHANCE_TOLERANCE = 0.03
# More booked requests than this must not be made late, in expectation.
MAX_HARM = 0.2
# A request is held only while some idle instance would give it this chance.
FAIR_CHANCE = 0.3
MIN_HOLD_S, MAX_HOLD_S = 0.01, 0.25
# A request without a deadline is held this long at most, seconds; then it goes where it harms least.
MAX_OPEN_WAIT_S = 10.0
SIZE_DECAY = 0.98


class Goodput(Policy):
    """See the module's docstring."""

    name = "goodput"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._mean_size_s = np.zeros(0)  # by slot; NaN: none yet
        self._rectifier = DeadlineRectifier(config)

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        if not query.info.slo or _waited_enough(query):
            return self._best_effort(query)
        c = query.candidates
        chance = np.where(c.known == 1, query.chances(self.config.margin), explorable(query))
        worthy = np.flatnonzero((chance > 0.0) & ((chance >= self._price(query)) | (c.known == 0)))
        score = c.in_flight / c.limit + URGENCY_WEIGHT * _urgency(query)
        safe = [k for k in worthy.tolist() if query.harm(k) <= MAX_HARM]
        if safe:
            enough = max(chance[safe]) - CHANCE_TOLERANCE
            return query.dispatch(
                min((k for k in safe if chance[k] >= enough), key=lambda k: score[k])
            )
        if not self._fair_alone(query):
            return Reject(
                "infeasible", f"no instance can meet the request's SLO: {query.why_not()}"
            )
        return Hold(query.now_s + _wait_s(query))

    def rectify(self, router: Router, now_s: float) -> list[Migration]:
        """See Policy."""
        return self._rectifier.moves(router, now_s)

    def _price(self, query: Query) -> Vector:
        """The chance that a request must have on each instance."""
        c = query.candidates
        size_s = c.prefill_s + c.decode_s / np.maximum(1.0, c.limit / 2)
        relative = size_s / np.maximum(1e-9, self._learn_sizes(c.slot, size_s))
        occupancy = np.minimum(1.0, c.in_flight / c.limit)
        return np.asarray(MIN_CHANCE + OCCUPANCY_PRICE * occupancy * np.sqrt(relative))

    def _learn_sizes(self, slots: npt.NDArray[np.int32], size_s: Vector) -> Vector:
        """Running mean of the share of each instance's time that requests take, this one included."""
        if slots.max() >= len(self._mean_size_s):
            grown = np.full(int(slots.max()) + 1, np.nan)
            grown[: len(self._mean_size_s)] = self._mean_size_s
            self._mean_size_s = grown
        before = self._mean_size_s[slots]
        before = np.where(np.isnan(before), size_s, before)
        mean = self._mean_size_s[slots] = SIZE_DECAY * before + (1 - SIZE_DECAY) * size_s
        return mean

    def _best_effort(self, query: Query) -> Decision:
        c = query.candidates
        order = np.argsort(c.in_flight / c.limit, kind="stable").tolist()
        return query.dispatch(next((k for k in order if query.harm(k) <= MAX_HARM), order[0]))

    def _fair_alone(self, query: Query) -> bool:
        """Whether the request would have a fair chance if some instance were idle."""
        c = query.candidates
        if not c.known.all():
            return True
        steps = max(1e-9, query.output_len - 1.0)
        first_s = c.alone_s - c.alone_tpot_s * steps
        info = query.info
        left_s = info.deadline_s - query.now_s - first_s
        able = (
            (query.now_s + first_s <= info.ttft_deadline_s)
            & (c.alone_tpot_s <= info.slo.tpot_s)
            & (left_s >= 0)
        )
        if not able.any():
            return False
        if math.isinf(info.deadline_s):
            return True
        longest = float(np.max(1.0 + left_s[able] / c.alone_tpot_s[able]))
        return query.lengths.cdf(longest) >= FAIR_CHANCE


def _waited_enough(query: Query) -> bool:
    """Whether a request that has only a TPOT objective, so nothing ends its wait, was held long enough."""
    info = query.info
    open_ended = math.isinf(info.deadline_s) and math.isinf(info.ttft_deadline_s)
    return open_ended and query.now_s - info.arrival_s > MAX_OPEN_WAIT_S


def _urgency(query: Query) -> Vector | float:
    left_s = query.info.deadline_s - query.now_s
    c = query.candidates
    return (c.queue_s + c.prefill_s + c.decode_s) / left_s if math.isfinite(left_s) else 0.0


def _wait_s(query: Query) -> float:
    """Until the next expected finish anywhere, within bounds."""
    soonest_s = min(
        query.pool.next_finish_s(slot, query.now_s) for slot in query.candidates.slot.tolist()
    )
    return min(MAX_HOLD_S, max(MIN_HOLD_S, soonest_s - query.now_s))
