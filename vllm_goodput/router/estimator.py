# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Speed of one instance as a black box, from response timings alone.

Regularised least squares with forgetting and non-negative coefficients on the model

    time = o + p·(prompt tokens to prefill) + d0·(decode steps) + d1·(decode steps x sequences in the batch)

so that d(n) = d0 + d1·n. A streamed response gives two equations (to the first token; from the first to the last), a
plain one their sum. Each is weighted by 1/time, which fits relative errors; a residual far outside the usual is
clipped, unless several in a row say that the speed has changed. That q, p and d come from outside the instance is
GoodServe's (arXiv 2605.16867); the regression is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

# Starting point and unit of each parameter: o [s], p [s/token], d0 [s/step], d1 [s/step/sequence].
PRIOR = np.array([0.02, 1e-4, 0.02, 5e-4])
PRIOR_STD = 30.0  # how far off the prior may be, relative to itself
NOISE = 0.1  # expected relative error of one equation
FORGETTING = 0.98
CHANGE_STD = (
    3.0  # how far off the last values may be after a change of speed, relative to themselves
)
CLIP = 4.0  # residuals beyond this many mean absolute residuals are clipped
SETTLED = 8  # samples before anything is clipped
CHANGE_STREAK = 4  # so many clipped residuals of one sign in a row mean a change of speed
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
        self._theta = np.ones(4)  # in units of PRIOR
        # What a ridge pulls towards, and how weakly: what new samples say nothing about stays as it was.
        self._center = np.ones(4)
        self._center_std = PRIOR_STD
        self._gram = np.zeros((4, 4))
        self._moment = np.zeros(4)
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
        fitted = float(x @ self._theta)
        target = fitted + self._clipped(1.0 - fitted)
        self._gram = FORGETTING * self._gram + np.outer(x, x) / NOISE**2
        self._moment = FORGETTING * self._moment + x * (target / NOISE**2)
        self._theta = self._solve()
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

    def _solve(self) -> Vector:
        """Least squares with a ridge towards the prior; coefficients that come out negative are set to 0."""
        ridge = 1.0 / (self._center_std * self._center) ** 2
        gram = self._gram + np.diag(ridge)
        moment = self._moment + ridge * self._center
        free = np.ones(4, dtype=bool)
        theta = np.zeros(4)
        while free.any():
            theta[:] = 0.0
            theta[free] = np.linalg.solve(gram[np.ix_(free, free)], moment[free])
            if (theta >= 0.0).all():
                break
            free[int(np.argmin(theta))] = False
        return theta

    def _clipped(self, residual: float) -> float:
        """Limit a residual far outside the usual, unless several in a row say that the speed has changed."""
        if self.samples < SETTLED:
            return residual
        bound = min(0.5, CLIP * max(0.05, self._mean_abs_residual))
        outside = 0 if abs(residual) <= bound else (1 if residual > 0 else -1)
        self._streak = self._streak + outside if outside * self._streak >= 0 and outside else 0
        if abs(self._streak) >= CHANGE_STREAK:
            self._forget()
            return residual
        clipped = min(bound, max(-bound, residual))
        self._mean_abs_residual += 0.1 * (abs(clipped) - self._mean_abs_residual)
        return clipped

    def _forget(self) -> None:
        """The instance has become faster or slower: let new samples outweigh the old at once."""
        self._center = np.maximum(self._theta, 0.1)
        self._center_std = CHANGE_STD
        self._gram[:] = 0.0
        self._moment[:] = 0.0
        self._mean_abs_residual = 0.1
        self._streak = 0
        self.samples = 1
