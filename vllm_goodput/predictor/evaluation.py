# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""How good predicted lengths are, over all examples and per task."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from vllm_goodput.predictor.metrics import coverage, mae, mean_of, pinball, r2

Floats = npt.NDArray[np.floating]
Rows = npt.NDArray[np.intp]

# Task types come from callers, so there may be any number; the smallest are judged together.
MAX_TASKS = 40
NO_TASK, OTHERS = "(no task)", "(other tasks)"
DIGITS = 4


@dataclass(frozen=True)
class Scores:
    """Figures of merit of n predictions.

    Args:
        rows: n.
        r2_log: share of the variance of the natural log length that the predicted mean explains; None if it has none.
        mae_tokens: mean absolute error of the predicted median.
        baseline_mae_tokens: the same of the mean length of the row's task.
        pinball_log: mean pinball loss of the log length over the levels.
        coverage_q50, coverage_q90: fraction of rows that do not exceed the quantile.
    """

    rows: int
    r2_log: float | None
    mae_tokens: float
    baseline_mae_tokens: float
    pinball_log: float
    coverage_q50: float
    coverage_q90: float

    def as_dict(self) -> dict[str, float | None]:
        """The figures with as many digits as a reader wants."""
        return {name: significant(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Predictions:
    """What was predicted for n finished requests.

    Args:
        output_len: float64 [n], true lengths, tokens.
        task: their declared task types.
        log_quantiles: float64 [n, levels], predicted quantiles of the natural log length.
        levels: float64 [levels].
    """

    output_len: Floats
    task: npt.NDArray[np.str_]
    log_quantiles: Floats
    levels: Floats

    @property
    def log_len(self) -> Floats:
        """Natural logarithm of the true lengths."""
        return np.asarray(np.log(np.maximum(1.0, self.output_len)))

    @property
    def median(self) -> Floats:
        """Predicted medians, tokens."""
        return np.asarray(np.exp(self.at(0.5)))

    def at(self, q: float) -> Floats:
        """Predicted q-quantiles of the log length; the nearest level's where q is not among the levels."""
        return np.asarray(self.log_quantiles[:, int(np.abs(self.levels - q).argmin())])

    def tasks(self) -> dict[str, Rows]:
        """Rows per task, the largest first."""
        names, index, counts = np.unique(self.task, return_inverse=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        found = {str(names[i]) or NO_TASK: np.flatnonzero(index == i) for i in order[:MAX_TASKS]}
        if len(order) > MAX_TASKS:
            found[OTHERS] = np.flatnonzero(np.isin(index, order[MAX_TASKS:]))
        return found

    def coverage(self, rows: Rows) -> list[float]:
        """Per level, the fraction of these rows that do not exceed its quantile."""
        quantiles = self.log_quantiles[rows].T
        return [coverage(self.log_len[rows], quantile) for quantile in quantiles]

    def overall(self) -> Scores:
        """Figures over all rows."""
        return self._scores(np.arange(len(self.output_len)), self._baseline())

    def per_task(self) -> dict[str, Scores]:
        """Figures per task, the largest first."""
        baseline = self._baseline()
        return {name: self._scores(rows, baseline) for name, rows in self.tasks().items()}

    def _baseline(self) -> Floats:
        """The mean length of each row's task."""
        names, index = np.unique(self.task, return_inverse=True)
        sums = np.bincount(index, self.output_len, len(names))
        return np.asarray((sums / np.bincount(index, minlength=len(names)))[index])

    def _scores(self, rows: Rows, baseline: Floats) -> Scores:
        log_len, quantiles = self.log_len[rows], self.log_quantiles[rows]
        explained = r2(log_len, mean_of(quantiles, self.levels))
        return Scores(
            rows=len(rows),
            r2_log=explained if math.isfinite(explained) else None,
            mae_tokens=mae(self.output_len[rows], self.median[rows]),
            baseline_mae_tokens=mae(self.output_len[rows], baseline[rows]),
            pinball_log=pinball(log_len, quantiles, self.levels),
            coverage_q50=coverage(log_len, self.at(0.5)[rows]),
            coverage_q90=coverage(log_len, self.at(0.9)[rows]),
        )


def significant(value: float | None) -> float | None:
    """A figure rounded to DIGITS significant digits; whole numbers stay as they are."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.{DIGITS}g}")
