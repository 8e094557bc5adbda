# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Whether decode time is d0 + d1·n: load points that the estimator has not seen, predicted from the others.

n is counted in three ways: requests that the client keeps open, requests in flight, and answers past their first token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.estimator_data import LoadPoint
from vllm_goodput.router.estimator import Sample, SpeedEstimator

MIN_LEVELS = 4
REPEATS, STEPS = 20, 200
COUNTS: dict[str, Callable[[LoadPoint], float]] = {
    "nominal": lambda point: point.nominal,
    "in flight": lambda point: point.in_flight,
    "decoding": lambda point: point.decoding,
}


def held_out(setups: Mapping[str, Sequence[LoadPoint]], seed: int) -> list[dict[str, Any]]:
    """Errors of the predicted time per output token at levels left out one by one; relative, absolute values."""
    usable = [points for points in setups.values() if len(points) >= MIN_LEVELS]
    rows = []
    for name, count in COUNTS.items():
        inner, outer = list[float](), list[float]()
        for points in usable:
            for index in range(len(points)):
                error = _left_out(points, index, count, seed)
                (inner if 0 < index < len(points) - 1 else outer).append(error)
        rows.append(_row(f"d0 + d1·n, n {name}", inner, outer))
    inner, outer = list[float](), list[float]()
    for points in usable:
        for index, point in enumerate(points):
            others = median(p.tpot_s for p in points if p is not point)
            error = abs(others / point.tpot_s - 1.0)
            (inner if 0 < index < len(points) - 1 else outer).append(error)
    return [*rows, _row("constant d", inner, outer)]


def _left_out(
    points: Sequence[LoadPoint], index: int, count: Callable[[LoadPoint], float], seed: int
) -> float:
    estimator = SpeedEstimator()
    others = [p for i, p in enumerate(points) if i != index] * REPEATS
    random.Random(seed).shuffle(others)
    for point in others:
        estimator.add(Sample(point.tpot_s * STEPS, 0.0, 0.0, STEPS, STEPS * count(point)))
    return abs(estimator.decode_step_s(count(points[index])) / points[index].tpot_s - 1.0)


def _row(method: str, inner: Sequence[float], outer: Sequence[float]) -> dict[str, Any]:
    both = [*inner, *outer]
    return {
        "part": "load points",
        "method": method,
        "levels": len(both),
        "error_median": float(np.median(both)),
        "error_p90": float(np.quantile(both, 0.9)),
        "between_median": float(np.median(inner)),
        "beyond_median": float(np.median(outer)),
    }
