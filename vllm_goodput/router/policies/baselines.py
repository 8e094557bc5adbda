# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Baselines that know no deadlines and reject nothing."""

from __future__ import annotations

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.latency import alone_s
from vllm_goodput.router.policies.base import Candidate, Policy, Query
from vllm_goodput.router.types import Decision


class RoundRobin(Policy):
    """Each instance in turn."""

    name = "round_robin"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._next = 0

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        chosen = query.candidates[self._next % len(query.candidates)]
        self._next += 1
        return chosen.dispatch()


class LeastRequest(Policy):
    """The instance with the fewest requests in flight."""

    name = "least_request"

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        return min(query.candidates, key=lambda c: len(c.instance.bookings)).dispatch()


class WeightedLeastRequest(Policy):
    """Fewest requests in flight relative to measured speed.

    Speed is the inverse of the time this very request would take on the idle instance.
    """

    name = "weighted_least_request"

    def decide(self, query: Query) -> Decision:
        """See Policy."""

        def load(candidate: Candidate) -> float:
            alone = alone_s(candidate.instance, query.info, candidate.prediction.output_len)
            return (len(candidate.instance.bookings) + 1) * alone

        return min(query.candidates, key=load).dispatch()
