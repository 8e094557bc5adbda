# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""GoodServe's published rule: the weakest instance that still meets the deadline (arXiv 2605.16867)."""

from __future__ import annotations

import math

from vllm_goodput.router.policies.base import Candidate, Policy, Query, explorable, fits
from vllm_goodput.router.types import Decision, Hold, Reject

UNMEASURED_HOLD_S = 0.05  # while an instance's first responses are awaited


class JustEnough(Policy):
    """Weakest means slowest per output token; without any SLO, the weakest of all. None feasible: reject."""

    name = "just_enough"

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        margin = self.config.margin
        feasible = [
            c
            for c in query.candidates
            if explorable(c)
            or (c.prediction.known and fits(query.info, c.prediction, query.now_s, margin))
        ]
        if not feasible:
            if any(not c.prediction.known for c in query.candidates):
                return Hold(query.now_s + UNMEASURED_HOLD_S)
            return Reject("infeasible", "no instance can meet the request's SLO")
        chosen = max(feasible, key=_weakness)
        return chosen.dispatch()


def _weakness(candidate: Candidate) -> float:
    if not candidate.prediction.known:
        return math.inf  # to be measured first
    return candidate.instance.speed.decode_step_s(1)
