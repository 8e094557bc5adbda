# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What a policy is given and what it must answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vllm_goodput.config import RouterConfig
from vllm_goodput.predictor.base import LengthDistribution
from vllm_goodput.router.instance import InstanceState
from vllm_goodput.router.types import Decision, Dispatch, Prediction, RequestInfo


@dataclass(frozen=True)
class Candidate:
    """An instance that could take the request, with the latency predicted there."""

    instance: InstanceState
    prediction: Prediction
    lengths: LengthDistribution

    def dispatch(self) -> Dispatch:
        """The decision to send the request here."""
        return Dispatch(self.instance.name, self.prediction, self.lengths)


@dataclass(frozen=True)
class Query:
    """One request to place, now."""

    info: RequestInfo
    lengths: LengthDistribution
    now_s: float
    candidates: Sequence[Candidate]


class Policy(ABC):
    """Chooses among the candidates; there is always at least one. Deterministic given its calls.

    Args:
        config: the router's settings.
    """

    name: ClassVar[str]

    def __init__(self, config: RouterConfig) -> None:
        self.config = config

    @abstractmethod
    def decide(self, query: Query) -> Decision:
        """Dispatch, hold or reject."""


# An instance never measured takes at most this many requests until its first responses are in.
MAX_UNMEASURED = 2


def explorable(candidate: Candidate) -> bool:
    """Whether an instance never measured may be tried with one more request."""
    return not candidate.prediction.known and len(candidate.instance.bookings) < MAX_UNMEASURED


def fits(info: RequestInfo, prediction: Prediction, now_s: float, margin: float) -> bool:
    """Whether predicted latencies, with the margin added, meet every objective of the request.

    TTFT objectives bound q + p·L_in, TPOT objectives d(n), e2el objectives T. Time since arrival counts.
    """
    stretch = 1.0 + margin
    return (
        now_s + prediction.e2el_s * stretch <= info.deadline_s
        and now_s + prediction.ttft_s * stretch <= info.ttft_deadline_s
        and prediction.tpot_s <= info.slo.tpot_s
    )
