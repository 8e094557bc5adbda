# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The default policy: send a request where it is expected to add most to goodput.

For every instance the expected gain is the chance that the request meets its SLO there (from the distribution of its
output length), less the accepted requests that are expected to miss theirs because of it, less a price for the capacity
it takes from requests to come: higher where the instance is busy and the request is large, so that under overload many
small requests are served rather than few large ones. Among gains close to the best, the least occupied instance
(`csrc/choice.*`). Where nothing is gained the request is held while an idle instance would still have a fair chance,
then rejected. A request without SLO goes where it harms least and is never rejected.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vllm_goodput import _C
from vllm_goodput.config import RouterConfig
from vllm_goodput.router.policies.base import MAX_UNMEASURED, Policy
from vllm_goodput.router.query import Query
from vllm_goodput.router.rectify import DeadlineRectifier
from vllm_goodput.router.types import Decision, Hold, Migration, Reject

if TYPE_CHECKING:
    from vllm_goodput.router.router import Router

# Chance asked of any request on an idle instance, and what full occupancy adds for a request of mean size.
MIN_PRICE, OCCUPANCY_PRICE = 0.05, 0.4
SIZE_EXPONENT = 1.75
# Gains this close to the best count as equal; then occupancy decides, and a little T / deadline.
TOLERANCE, URGENCY_WEIGHT = 0.03, 0.1
# A request is held only while some idle instance would give it this chance.
FAIR_CHANCE = 0.3
MIN_HOLD_S, MAX_HOLD_S = 0.01, 0.25
# A request without a deadline is held this long at most, seconds; then it goes where it harms least.
MAX_OPEN_WAIT_S = 10.0
# A request without SLO may be expected to make so many booked ones late on the least occupied instance.
MAX_HARM = 0.2


class Goodput(Policy):
    """See the module's docstring."""

    name = "goodput"
    some_will_do = True

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._choice = _C.GoodputChoice(
            stretch=1.0 + config.margin,
            min_price=MIN_PRICE,
            occupancy_price=OCCUPANCY_PRICE,
            size_exponent=SIZE_EXPONENT,
            tolerance=TOLERANCE,
            urgency_weight=URGENCY_WEIGHT,
            max_unmeasured=MAX_UNMEASURED,
        )
        self._rectifier = DeadlineRectifier(config)

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        if goes_anywhere(query):
            return self._best_effort(query)
        # Held requests ask again; what is large must not count as common for that.
        first = query.now_s - query.info.arrival_s < MIN_HOLD_S
        chosen = self._choice.choose(
            query.pool, query.demand, query.lengths, query.now_s, learn=first
        )
        if chosen >= 0:
            return query.dispatch(chosen)
        if not _fair_alone(query):
            return Reject(
                "infeasible", f"no instance can meet the request's SLO: {query.why_not()}"
            )
        return Hold(query.now_s + _wait_s(query))

    def rectify(self, router: Router, now_s: float) -> list[Migration]:
        """See Policy."""
        return self._rectifier.moves(router, now_s)

    def _best_effort(self, query: Query) -> Decision:
        c = query.candidates
        order = np.argsort(c.in_flight / c.limit, kind="stable").tolist()
        return query.dispatch(next((k for k in order if query.harm(k) <= MAX_HARM), order[0]))


def _fair_alone(query: Query) -> bool:
    """Whether the request would have a fair chance if some instance were idle."""
    c, info = query.candidates, query.info
    if not c.known.all():
        return True
    first_s = c.alone_s - c.alone_tpot_s * max(0.0, query.output_len - 1.0)
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


def goes_anywhere(query: Query) -> bool:
    """Whether a request has no SLO, or only one that ends no wait (TPOT) and was held long enough."""
    info = query.info
    if not info.slo:
        return True
    open_ended = math.isinf(info.deadline_s) and math.isinf(info.ttft_deadline_s)
    return open_ended and query.now_s - info.arrival_s > MAX_OPEN_WAIT_S


def _wait_s(query: Query) -> float:
    """Until the next expected finish anywhere, within bounds."""
    soonest_s = query.pool.soonest_finish_s(query.now_s)
    return min(MAX_HOLD_S, max(MIN_HOLD_S, soonest_s - query.now_s))
