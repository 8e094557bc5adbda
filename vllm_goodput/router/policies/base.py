# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What a policy must answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.query import Query
from vllm_goodput.router.types import Decision, Hold, Migration, Reject

if TYPE_CHECKING:
    from vllm_goodput.router.router import Router

Mask = npt.NDArray[np.bool_]

# An instance never measured takes at most this many requests until its first responses are in.
MAX_UNMEASURED = 2
# How long a request waits for them, seconds.
UNMEASURED_HOLD_S = 0.05


class Policy(ABC):
    """Chooses among a query's candidates; there is always at least one. Deterministic given its calls.

    Args:
        config: the router's settings.
    """

    name: ClassVar[str]
    # Whether a part of a large pool will do to dispatch.
    some_will_do: ClassVar[bool] = False

    def __init__(self, config: RouterConfig) -> None:
        self.config = config

    @abstractmethod
    def decide(self, query: Query) -> Decision:
        """Dispatch, hold or reject."""

    def rectify(self, router: Router, now_s: float) -> list[Migration]:
        """Which open requests should move; none by default."""
        return []


def explorable(query: Query) -> Mask:
    """Which instances were never measured and may be tried with one more request."""
    c = query.candidates
    return np.asarray((c.known == 0) & (c.in_flight < MAX_UNMEASURED))


def usable(query: Query, margin: float) -> Mask:
    """Which instances are predicted to meet every objective, or have never been measured and may be tried."""
    return np.asarray(explorable(query) | ((query.candidates.known == 1) & query.feasible(margin)))


def nowhere(query: Query) -> Decision:
    """The answer where no instance is usable."""
    if not query.candidates.known.all():
        return Hold(query.now_s + UNMEASURED_HOLD_S)
    return Reject("infeasible", f"no instance can meet the request's SLO: {query.why_not()}")
