# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Running histogram of output lengths per task: log2 buckets, eight per octave, old counts fading.

Bounded: at most `max_tasks` tasks have a histogram of their own; further ones share that of all tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vllm_goodput import _C

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution
    from vllm_goodput.router.types import RequestInfo

PER_OCTAVE = 8
BUCKETS = 21 * PER_OCTAVE  # up to 2**21 tokens
# Spread of the initial guess, in natural log of the length.
INITIAL_LOG_SIGMA = 1.0
# Upper edge of each bucket, tokens.
EDGES = 2.0 ** (np.arange(1, BUCKETS + 1) / PER_OCTAVE)
_LOG_EDGES = np.log(EDGES)
_BUCKET = math.log(2.0) / PER_OCTAVE  # width, in log length
# Sums of floats leave a rest where nothing is left.
NOTHING = 1e-12


@dataclass
class _Histogram:
    counts: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(BUCKETS))

    def add(self, length: int, decay: float) -> None:
        self.counts *= decay
        self.counts[_bucket(length)] += 1.0


class HistogramDistribution(_C.Lengths):
    """A snapshot of bucket weights, capped at a length; a LengthDistribution, linear in log length within a bucket.

    Args:
        weights: one per bucket, any positive sum.
        cap: no output is longer, tokens.
    """

    def __init__(self, weights: npt.NDArray[np.float64], cap: float) -> None:
        cumulative = np.cumsum(weights)
        levels = cumulative / cumulative[-1]
        first, last = np.searchsorted(levels, (NOTHING, 1.0 - NOTHING))
        inner = slice(int(first), int(last) + 1)
        levels = np.concatenate([[0.0], levels[inner]])
        levels[-1] = 1.0
        super().__init__(
            levels, np.concatenate([_LOG_EDGES[inner][:1] - _BUCKET, _LOG_EDGES[inner]]), cap
        )


class TaskHistogram:
    """The LengthPredictor of the first kind.

    Args:
        initial_len: median assumed before anything has finished, tokens; counts as one observation.
        decay: factor on old counts per new observation.
        max_tasks: bound on the number of tasks remembered.
        use_max_tokens: never predict above a request's max_tokens.
    """

    def __init__(
        self,
        initial_len: int = 256,
        decay: float = 0.995,
        max_tasks: int = 1000,
        use_max_tokens: bool = True,
    ) -> None:
        self._decay = decay
        self._max_tasks = max_tasks
        self._use_max_tokens = use_max_tokens
        self._tasks: dict[str, _Histogram] = {}
        self._all = _Histogram()
        deviation = np.log(EDGES / initial_len) / INITIAL_LOG_SIGMA
        initial = np.exp(-0.5 * deviation**2)
        self._all.counts += initial / initial.sum()

    def predict(self, info: RequestInfo) -> HistogramDistribution:
        """See LengthPredictor. A task's own lengths outweigh those of all tasks as they come in."""
        weights = self._all.counts / self._all.counts.sum()
        own = self._tasks.get(info.task or "")
        if own is not None:
            weights = own.counts + weights
        return HistogramDistribution(weights, info.output_cap(self._use_max_tokens))

    def predict_batch(self, infos: Sequence[RequestInfo]) -> list[HistogramDistribution]:
        """See LengthPredictor."""
        return [self.predict(info) for info in infos]

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """See LengthPredictor."""
        if output_len < 1:
            return
        self._all.add(output_len, self._decay)
        task = info.task or ""
        if task not in self._tasks:
            if len(self._tasks) >= self._max_tasks:
                return
            self._tasks[task] = _Histogram()
        self._tasks[task].add(output_len, self._decay)


def _bucket(length: int) -> int:
    return min(BUCKETS - 1, max(0, math.ceil(math.log2(max(1, length)) * PER_OCTAVE) - 1))
