# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Speed of one instance as a black box, from response timings alone.

Recursive least squares with forgetting on the model

    time = o + p·(prompt tokens to prefill) + d0·(decode steps) + d1·(decode steps x sequences in the batch)

so that d(n) = d0 + d1·n. A streamed response gives two equations (to the first token; from the first to the last), a
plain one their sum. Each is weighted by 1/time, which fits relative errors; a residual far outside the usual is
clipped. Source: DESIGN of GoodServe (arXiv 2605.16867) for q, p, d as a black box; the regression is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

# Starting point and scale of each parameter: o [s], p [s/token], d0 [s/step], d1 [s/step/sequence].
PRIOR = np.array([0.02, 1e-4, 0.02, 5e-4])
FORGETTING = 0.98
PRIOR_STD = 5.0  # relative to PRIOR
NOISE = 0.1  # expected relative error of one equation
MAX_STD = 50.0  # bound on the covariance's growth when inputs do not vary
CLIP = 4.0  # residuals beyond this many mean absolute residuals are clipped
CHANGE_STREAK = 4  # so many clipped residuals of one sign in a row mean a change of speed
SETTLED = 8  # samples before anything is clipped
MIN_TIME_S = 1e-3


@dataclass(frozen=True)
class Sample:
    """One equation: `time_s` spent on these amounts of work."""

    time_s: float
    requests: float
    prefill_tokens: float
    steps: float
    step_sequences: float


class SpeedEstimator:
    """Estimates o, p, d0, d1 of one instance."""

    def __init__(self) -> None:
        # Parameters are kept in units of PRIOR, so that one covariance scale fits all four.
        self._theta = np.ones(4)
        self._cov = np.eye(4) * PRIOR_STD**2
        self._mean_abs_residual = 0.1
        self._streak = 0
        self.samples = 0

    @property
    def known(self) -> bool:
        """Whether at least one response has been seen."""
        return self.samples > 0

    def add(self, sample: Sample) -> None:
        """Learn from one equation; ones without work or time are ignored."""
        amounts = np.array(
            [sample.requests, sample.prefill_tokens, sample.steps, sample.step_sequences]
        )
        if sample.time_s < MIN_TIME_S or not amounts.any():
            return
        x: Vector = amounts * PRIOR / sample.time_s
        residual = self._clipped(1.0 - float(x @ self._theta))
        spread = self._cov @ x
        gain = spread / (FORGETTING * NOISE**2 + float(x @ spread))
        self._theta = np.maximum(self._theta + gain * residual, 0.0)
        self._cov = (self._cov - np.outer(gain, spread)) / FORGETTING
        self._bound_covariance()
        self.samples += 1

    def overhead_s(self) -> float:
        """o: fixed time per request, seconds."""
        return float(self._theta[0] * PRIOR[0])

    def prefill_token_s(self) -> float:
        """p: seconds per prompt token."""
        return float(self._theta[1] * PRIOR[1])

    def decode_step_s(self, sequences: float) -> float:
        """d(n): seconds per output token with n sequences in the batch."""
        return max(1e-5, float(self._theta[2] * PRIOR[2] + self._theta[3] * PRIOR[3] * sequences))

    def _clipped(self, residual: float) -> float:
        """Limit a residual far outside the usual, unless several in a row say that the speed has changed."""
        bound = min(0.5, CLIP * max(0.05, self._mean_abs_residual))
        outside = 0 if abs(residual) <= bound else (1 if residual > 0 else -1)
        self._streak = self._streak + outside if outside * self._streak >= 0 and outside else 0
        if abs(self._streak) >= CHANGE_STREAK:
            self._streak = 0
            self._forget()
        if self.samples < SETTLED:
            return residual
        clipped = min(bound, max(-bound, residual))
        self._mean_abs_residual += 0.1 * (abs(clipped) - self._mean_abs_residual)
        return clipped

    def _forget(self) -> None:
        """Start over from the present values: the instance has become faster or slower."""
        self._cov = np.diag((PRIOR_STD * np.maximum(self._theta, 1.0)) ** 2)
        self._mean_abs_residual = 0.1
        self.samples = 1

    def _bound_covariance(self) -> None:
        self._cov = (self._cov + self._cov.T) / 2
        bound = (MAX_STD * max(1.0, float(self._theta.max()))) ** 2
        largest = float(np.max(np.diag(self._cov)))
        if largest > bound:
            self._cov *= bound / largest
