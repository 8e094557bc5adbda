# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A length distribution given by quantiles of its natural logarithm."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

MAX_LOG = 40.0  # keeps exp() far from overflow, and any real length below
# Of the length seen so far, expected to come where no prediction reaches that far.
BEYOND = 0.5


class QuantileDistribution:
    """Piecewise linear in log length between its quantiles; satisfies LengthDistribution.

    Beyond the outer quantiles the line of the outer pair is continued to the levels 0 and 1.

    Args:
        levels: rising quantile levels, inside (0, 1).
        log_quantiles: their quantiles, non-decreasing, natural logarithm of tokens.
        cap: no output is longer, tokens.
    """

    __slots__ = ("_cap", "_levels", "_logs")

    def __init__(
        self, levels: Sequence[float], log_quantiles: Sequence[float], cap: float = math.inf
    ) -> None:
        ends = with_ends(np.array([log_quantiles], dtype=float), np.asarray(levels, dtype=float))
        self._levels: tuple[float, ...] = (0.0, *levels, 1.0)
        self._logs: list[float] = ends[0].tolist()
        self._cap = max(1.0, cap)

    @property
    def log_quantiles(self) -> list[float]:
        """The quantiles as given."""
        return self._logs[1:-1]

    def quantile(self, q: float) -> float:
        """See LengthDistribution."""
        return max(1.0, min(self._cap, math.exp(min(MAX_LOG, self._log_at(q)))))

    def cdf(self, length: float) -> float:
        """See LengthDistribution."""
        if length < 1.0:
            return 0.0
        return 1.0 if length >= self._cap else self._level_at(math.log(length))

    def remaining(self, generated: float, q: float) -> float:
        """See LengthDistribution."""
        passed = self.cdf(generated)
        if passed < 1.0:
            total = self.quantile(passed + q * (1.0 - passed))
        else:
            total = min(self._cap, generated * (1.0 + BEYOND))
        return max(1.0, total - generated)

    def _log_at(self, q: float) -> float:
        levels, logs = self._levels, self._logs
        i = min(max(1, bisect_left(levels, q)), len(levels) - 1)
        part = (q - levels[i - 1]) / (levels[i] - levels[i - 1])
        return logs[i - 1] + min(1.0, max(0.0, part)) * (logs[i] - logs[i - 1])

    def _level_at(self, log_len: float) -> float:
        levels, logs = self._levels, self._logs
        if log_len >= logs[-1]:
            return 1.0
        i = bisect_right(logs, log_len)
        if i == 0:
            return 0.0
        part = (log_len - logs[i - 1]) / (logs[i] - logs[i - 1])
        return levels[i - 1] + part * (levels[i] - levels[i - 1])


def with_ends(log_quantiles: Matrix, levels: Matrix) -> Matrix:
    """Log quantiles at the levels 0 and 1 put around those given: [n, levels] -> [n, levels + 2]."""
    out = np.empty((len(log_quantiles), len(levels) + 2))
    out[:, 1:-1] = log_quantiles
    first, second = log_quantiles[:, 0], log_quantiles[:, 1]
    last, before = log_quantiles[:, -1], log_quantiles[:, -2]
    out[:, 0] = first - (second - first) * (levels[0] / (levels[1] - levels[0]))
    out[:, -1] = last + (last - before) * ((1.0 - levels[-1]) / (levels[-1] - levels[-2]))
    return out
