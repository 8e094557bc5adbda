# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the length predictors of the comparison say, and how good it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_goodput.predictor.metrics import coverage, mae, mean_of, pinball, r2
from vllm_goodput.predictor.training import LEVELS

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

MEDIAN = int(np.flatnonzero(LEVELS == 0.5)[0])
Q90 = int(np.flatnonzero(LEVELS == 0.9)[0])


@dataclass(frozen=True)
class Forecast:
    """Predictions for n requests.

    Args:
        quantiles: [n, levels] of the natural log length.
        mean: [n] of the same.
        tokens: [n], the one number to say.
    """

    quantiles: Floats
    mean: Floats
    tokens: Floats

    @classmethod
    def of(cls, quantiles: npt.NDArray[Any], mean: Floats | None = None) -> Forecast:
        """From quantiles of the log length; the number to say is the median."""
        quantiles = np.asarray(quantiles, dtype=np.float64)
        if mean is None:
            mean = np.asarray(mean_of(quantiles, LEVELS), dtype=np.float64)
        return cls(quantiles, mean, np.exp(quantiles[:, MEDIAN]))

    def take(self, rows: npt.NDArray[Any]) -> Forecast:
        """Those at these positions (or where a mask holds)."""
        return Forecast(self.quantiles[rows], self.mean[rows], self.tokens[rows])


def joined(parts: Sequence[Forecast]) -> Forecast:
    """All forecasts, one part after the other."""
    return Forecast(
        np.concatenate([p.quantiles for p in parts]),
        np.concatenate([p.mean for p in parts]),
        np.concatenate([p.tokens for p in parts]),
    )


def scores(log_len: Floats, forecast: Forecast) -> dict[str, Any]:
    """Figures of merit; lengths in tokens where the name says so, else in natural logarithms."""
    length = np.exp(log_len)
    q90 = forecast.quantiles[:, Q90]
    level = LEVELS[Q90 : Q90 + 1]
    return {
        "rows": len(log_len),
        "r2_log_len": r2(log_len, forecast.mean),
        "mae_tokens": mae(length, forecast.tokens),
        "pinball": pinball(log_len, forecast.quantiles, LEVELS),
        "pinball_q90": pinball(log_len, q90, level),
        "pinball_q90_tokens": pinball(length, np.exp(q90), level),
        "coverage_q50": coverage(log_len, forecast.quantiles[:, MEDIAN]),
        "coverage_q90": coverage(log_len, q90),
    }


def cut(ours: float, theirs: float) -> float:
    """By which part ours is smaller; NaN where theirs is nothing."""
    return 1.0 - ours / theirs if theirs > 0 else float("nan")


def repeated_inputs(log_len: Floats, inputs: npt.NDArray[np.int64]) -> tuple[Rows, float]:
    """Rows whose model met the very same input at least twice, and the largest R2 that is possible there.

    Lengths of equal inputs differ by sampling alone (and by what the pairs do not show), so no predictor that sees
    only the input explains more. NaN where nothing repeats.
    """
    _, index, counts = np.unique(inputs, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[index] > 1)
    if not len(rows):
        return rows, float("nan")
    _, index, counts = np.unique(inputs[rows], return_inverse=True, return_counts=True)
    actual = log_len[rows]
    means = np.bincount(index, actual) / counts
    # Each group's own mean costs one degree of freedom.
    within = float(np.sum((actual - means[index]) ** 2)) / (len(rows) - len(counts))
    total = float(np.var(actual))
    return rows, 1.0 - within / total if total > 0 else float("nan")
