# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""GoodServe's published rule: the weakest instance that still meets the deadline (arXiv 2605.16867)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.policies.base import Policy, nowhere, usable
from vllm_goodput.router.query import Query
from vllm_goodput.router.rectify import DeadlineRectifier
from vllm_goodput.router.types import Decision, Migration

if TYPE_CHECKING:
    from vllm_goodput.router.router import Router


class JustEnough(Policy):
    """Weakest means slowest per output token; without any SLO, the weakest of all. None feasible: reject.

    Running requests that are predicted to miss move to the weakest other instance that still makes it.
    """

    name = "just_enough"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._rectifier = DeadlineRectifier(config)

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        feasible = np.flatnonzero(usable(query, self.config.margin))
        if not len(feasible):
            return nowhere(query)
        c = query.candidates
        weakness = np.where(c.known == 1, c.alone_tpot_s, np.inf)  # to be measured first
        return query.dispatch(int(feasible[np.argmax(weakness[feasible])]))

    def rectify(self, router: Router, now_s: float) -> list[Migration]:
        """See Policy."""
        return self._rectifier.moves(router, now_s)
