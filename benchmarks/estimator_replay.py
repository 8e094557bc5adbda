# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Replay of recorded answers through the router's own interface: what it predicts on arrival against what came.

Every instance has a router of its own that knows the true output lengths, so that all of the error is the latency
model's. Plain exponential averages see the same events in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.estimator_data import Answer
from vllm_goodput.config import RouterConfig
from vllm_goodput.predictor.constant import narrow
from vllm_goodput.router.router import Router
from vllm_goodput.router.types import Dispatch, RequestInfo

FIRST, LAST, ARRIVAL = 0, 1, 2  # what ends at a moment is known to what begins then


@dataclass(frozen=True)
class Predicted:
    """A prediction on arrival, and what came; seconds. `finished`: answers that the instance had finished by then."""

    answer: Answer
    ttft_s: float
    e2el_s: float
    finished: int

    @property
    def error(self) -> float:
        """Of the end-to-end latency, relative to the true one; below 0 where it was predicted too short."""
        return self.e2el_s / self.answer.e2el_s - 1.0


@dataclass
class RouterForecaster:
    """The router, on one instance."""

    router: Router = field(
        default_factory=lambda: Router(RouterConfig(policy="least_request", length_quantile=0.5))
    )

    def __post_init__(self) -> None:
        self.router.add_instance("it")

    def arrival(self, number: int, answer: Answer) -> tuple[float, float]:
        """Predicted TTFT and E2EL, seconds; the request is dispatched."""
        now_s = answer.arrival_s
        info = RequestInfo(str(number), answer.prompt_len, now_s)
        decision = self.router.route(info, now_s, narrow(answer.output_len))
        assert isinstance(decision, Dispatch)
        self.router.on_dispatched(info, decision, now_s)
        return decision.prediction.ttft_s, decision.prediction.e2el_s

    def first(self, number: int, answer: Answer) -> None:
        """The first token came."""
        self.router.on_first_token(str(number), answer.arrival_s + answer.ttft_s)

    def last(self, number: int, answer: Answer) -> None:
        """The last token came."""
        self.router.on_finished(str(number), answer.output_len, answer.end_s)


@dataclass
class EmaForecaster:
    """Exponential averages of the time per output token and of the first token's.

    Args:
        alpha: weight of the newest value.
        ttft: the first token's time is averaged as it is ("whole"), per prompt token ("token"), or taken for nothing.
    """

    alpha: float
    ttft: str = ""
    _tpot_s: float | None = None
    _ttft: float | None = None

    def arrival(self, number: int, answer: Answer) -> tuple[float, float]:
        """Predicted TTFT and E2EL, seconds; 0 while nothing is known."""
        ttft_s = (self._ttft or 0.0) * self._unit(answer)
        return ttft_s, ttft_s + (self._tpot_s or 0.0) * (answer.output_len - 1)

    def first(self, number: int, answer: Answer) -> None:
        """The first token came."""
        if self.ttft:
            self._ttft = self._mean(self._ttft, answer.ttft_s / self._unit(answer))

    def last(self, number: int, answer: Answer) -> None:
        """The last token came."""
        if answer.output_len > 1:
            self._tpot_s = self._mean(self._tpot_s, answer.tpot_s)

    def _unit(self, answer: Answer) -> float:
        return float(answer.prompt_len) if self.ttft == "token" else 1.0

    def _mean(self, before: float | None, value: float) -> float:
        return value if before is None else before + self.alpha * (value - before)


Forecaster = RouterForecaster | EmaForecaster


def replay(answers: Sequence[Answer], forecaster: Forecaster) -> list[Predicted]:
    """Everything that happened on one instance, in order."""
    finished, found = 0, list[Predicted]()
    for _, kind, number in sorted(_events(answers)):
        answer = answers[number]
        if kind == ARRIVAL:
            found.append(Predicted(answer, *forecaster.arrival(number, answer), finished))
        elif kind == FIRST:
            forecaster.first(number, answer)
        else:
            forecaster.last(number, answer)
            finished += 1
    return found


def errors(
    instances: Sequence[Sequence[Answer]], make: Callable[[], Forecaster], warm_up: int
) -> list[float]:
    """Relative errors on all instances, of what arrived after `warm_up` answers had finished there."""
    return [
        predicted.error
        for answers in instances
        for predicted in replay(answers, make())
        if predicted.finished >= warm_up
    ]


def _events(answers: Sequence[Answer]) -> Iterator[tuple[float, int, int]]:
    for number, answer in enumerate(answers):
        yield answer.arrival_s, ARRIVAL, number
        yield answer.arrival_s + answer.ttft_s, FIRST, number
        yield answer.end_s, LAST, number
