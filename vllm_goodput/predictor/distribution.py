# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A length distribution given by quantiles of its natural logarithm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vllm_goodput import _C

Matrix = npt.NDArray[np.float64]


class QuantileDistribution(_C.Lengths):
    """Piecewise linear in log length between its quantiles; satisfies LengthDistribution (`csrc/lengths.*`).

    Beyond the outer quantiles the line of the outer pair is continued to the levels 0 and 1.

    Args:
        levels: rising quantile levels, inside (0, 1).
        log_quantiles: their quantiles, non-decreasing, natural logarithm of tokens.
        cap: no output is longer, tokens.
    """

    def __init__(
        self, levels: Sequence[float], log_quantiles: Sequence[float], cap: float = math.inf
    ) -> None:
        ends = with_ends(np.array([log_quantiles], dtype=float), np.asarray(levels, dtype=float))
        super().__init__((0.0, *levels, 1.0), ends[0], cap)

    @property
    def log_quantiles(self) -> list[float]:
        """The quantiles as given."""
        logs: list[float] = self.logs[1:-1].tolist()
        return logs


def with_ends(log_quantiles: Matrix, levels: Matrix) -> Matrix:
    """Log quantiles at the levels 0 and 1 put around those given: [n, levels] -> [n, levels + 2]."""
    out = np.empty((len(log_quantiles), len(levels) + 2))
    out[:, 1:-1] = log_quantiles
    first, second = log_quantiles[:, 0], log_quantiles[:, 1]
    last, before = log_quantiles[:, -1], log_quantiles[:, -2]
    out[:, 0] = first - (second - first) * (levels[0] / (levels[1] - levels[0]))
    out[:, -1] = last + (last - before) * ((1.0 - levels[-1]) / (levels[-1] - levels[-2]))
    return out
