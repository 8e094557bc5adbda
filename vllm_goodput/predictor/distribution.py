# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A length distribution given by quantiles of its natural logarithm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vllm_goodput import _C


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
        first, second = log_quantiles[:2]
        before, last = log_quantiles[-2:]
        low = levels[0] / (levels[1] - levels[0])
        high = (1.0 - levels[-1]) / (levels[-1] - levels[-2])
        ends = (first - (second - first) * low, *log_quantiles, last + (last - before) * high)
        super().__init__((0.0, *levels, 1.0), ends, cap)

    @property
    def log_quantiles(self) -> list[float]:
        """The quantiles as given."""
        logs: list[float] = self.logs[1:-1].tolist()
        return logs
