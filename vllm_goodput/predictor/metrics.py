# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Figures of merit of predicted lengths."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def r2(actual: Floats, predicted: Floats) -> float:
    """Share of the variance that is explained; NaN where there is none."""
    total = float(np.sum((actual - actual.mean()) ** 2))
    return 1.0 - float(np.sum((actual - predicted) ** 2)) / total if total > 0 else float("nan")


def mae(actual: Floats, predicted: Floats) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(actual - predicted)))


def pinball(actual: Floats, quantiles: Floats, levels: Floats) -> float:
    """Mean pinball loss.

    Args:
        actual: [n].
        quantiles: [n, levels] (or [n] with one level).
        levels: [levels].
    """
    error = actual[:, None] - quantiles.reshape(len(actual), -1)
    return float(np.mean(np.maximum(levels * error, (levels - 1.0) * error)))


def coverage(actual: Floats, quantile: Floats) -> float:
    """Fraction that does not exceed the quantile."""
    return float(np.mean(actual <= quantile))


def mean_of(quantiles: Floats, levels: Floats) -> Floats:
    """Mean of distributions given by quantiles: [n, levels] -> [n].

    The quantile function is taken as linear between the levels and flat beyond them.
    """
    inner = np.diff(levels)
    weights = np.zeros(len(levels))
    weights[:-1] += inner / 2
    weights[1:] += inner / 2
    weights[0] += levels[0]
    weights[-1] += 1.0 - levels[-1]
    return np.asarray(quantiles @ weights)
