# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Simulated side of `benchmarks.sim_validation`: prediction of a cell, fit of the constants, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.sim_validation_cells import (
    CLIENT_TIMEOUT_S,
    WORD_TOKENS,
    Cell,
    deployment,
    instances,
    trace,
)
from benchmarks.sim_validation_live import Measured
from vllm_goodput.bench import Record, summarise
from vllm_goodput.emulation import MAX_VALID_OVERRUN_FRACTION
from vllm_goodput.predictor.factory import make_predictor
from vllm_goodput.router import Router
from vllm_goodput.sim import Overheads, SimOptions, simulate

QUANTILES = (25, 50, 75, 95)
# Fields of Overheads that are fitted, with where the search begins and how far it steps.
FITTED = {"request_s": (0.006, 0.004), "token_s": (0.003, 0.002), "prompt_token_s": (2e-6, 2e-6)}
# A small shift in time sends a request elsewhere, and that the next one; so predictions are medians over many runs in
# which every request's way takes some other time, as in reality.
REPEATS, JITTER_S = 15, 0.003
LEAST_SHRINK = 1 / 16  # steps are halved where none helps
MAX_TURNS = 30


def predict(cell: Cell, duration_s: float, seed: int, overheads: Overheads) -> list[list[Record]]:
    """Simulate a cell several times, with other jitter each time."""
    fixed_s = max(0.0, overheads.request_s - JITTER_S)
    jittered = replace(overheads, request_s=fixed_s, jitter_s=JITTER_S)
    return [simulate_once(cell, duration_s, seed, jittered, repeat) for repeat in range(REPEATS)]


def simulate_once(
    cell: Cell, duration_s: float, seed: int, overheads: Overheads, repeat: int = 0
) -> list[Record]:
    """Simulate a cell.

    Args:
        cell: which.
        duration_s: of the trace.
        seed: of the trace.
        overheads: of HTTP.
        repeat: seed of the jitter.
    """
    config = deployment(cell.pool).gateway.router.model_copy(update={"policy": cell.policy})
    options = SimOptions(
        overheads=overheads,
        probe_word_tokens=WORD_TOKENS,
        timeout_s=CLIENT_TIMEOUT_S,
        model="tiny",
        migration=False,  # nothing moves in what is measured
        seed=repeat,
    )
    router = Router(config, make_predictor(config))
    return simulate(trace(cell, duration_s, seed), instances(cell.pool), router, options=options)


def fit(measured: Measured, duration_s: float, seed: int) -> Overheads:
    """The constants with which the simulated latencies of a cell are closest to the measured ones.

    Searches one constant at a time with shrinking steps, from a fixed beginning.
    """

    def distance(overheads: Overheads) -> float:
        return _distance(
            measured.records, simulate_once(measured.cell, duration_s, seed, overheads)
        )

    best = Overheads(**{name: start for name, (start, _) in FITTED.items()})
    least, shrink = distance(best), 1.0
    for _ in range(MAX_TURNS):
        before = least
        for name, (_, step) in FITTED.items():
            for change in (step * shrink, -step * shrink):
                candidate = replace(best, **{name: max(0.0, getattr(best, name) + change)})
                found = distance(candidate)
                if found < least:
                    best, least = candidate, found
                    break
        if least == before:
            shrink /= 2
            if shrink < LEAST_SHRINK:
                break
    return best


@dataclass(frozen=True)
class Comparison:
    """A cell, measured and simulated (median of repeats); goodput in req/s, E2EL in ms.

    Args:
        cell: which.
        goodput, p50, p95: measured, simulated.
        spread: standard deviation of the simulated P95 over repeats, relative to its mean.
        overrun_fraction: of the engine with the most.
        overruns: by engine.
    """

    cell: Cell
    goodput: tuple[float, float]
    p50: tuple[float, float]
    p95: tuple[float, float]
    spread: float
    overrun_fraction: float
    overruns: dict[str, dict[str, Any]]

    @property
    def valid(self) -> bool:
        """Whether the emulation was."""
        return self.overrun_fraction <= MAX_VALID_OVERRUN_FRACTION

    @property
    def pairs(self) -> list[float]:
        """Measured and simulated of each figure."""
        return [*self.goodput, *self.p50, *self.p95]

    @property
    def errors(self) -> dict[str, float]:
        """Relative to what was measured."""
        figures = {"goodput": self.goodput, "e2el_p50": self.p50, "e2el_p95": self.p95}
        return {
            f"{name}_error": abs(sim / real - 1.0) if real else math.inf
            for name, (real, sim) in figures.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        figures = {"goodput": self.goodput, "e2el_p50_ms": self.p50, "e2el_p95_ms": self.p95}
        return {
            **asdict(self.cell),
            "cell": self.cell.name,
            **{name: {"measured": real, "simulated": sim} for name, (real, sim) in figures.items()},
            **self.errors,
            "e2el_p95_spread": self.spread,
            "overrun_fraction": self.overrun_fraction,
            "valid": self.valid,
            "overruns": self.overruns,
        }


def compare(measured: Measured, simulated: Sequence[Sequence[Record]]) -> Comparison:
    """Hold repeats of a simulated cell against the measured one."""
    duration_s = max(r.arrival_s for r in measured.records)
    real = summarise(measured.records, duration_s)
    repeats = [summarise(records, duration_s) for records in simulated]

    def values(name: str) -> list[float]:
        return [float(summary[name] or 0.0) for summary in repeats]

    def pair(name: str) -> tuple[float, float]:
        return float(real[name] or 0.0), float(np.median(values(name)))

    p95 = values("p95_e2el_ms")
    return Comparison(
        measured.cell,
        pair("request_goodput"),
        pair("p50_e2el_ms"),
        pair("p95_e2el_ms"),
        float(np.std(p95) / np.mean(p95)),
        measured.overrun_fraction,
        measured.overruns,
    )


def _distance(real: Sequence[Record], simulated: Sequence[Record]) -> float:
    """Sum of |log ratio| over quantiles of TTFT and E2EL."""
    total = 0.0
    for name in ("ttft_s", "e2el_s"):
        first, second = (
            np.percentile([getattr(r, name) for r in records if r.completed], QUANTILES)
            for records in (real, simulated)
        )
        total += float(np.abs(np.log(first / second)).sum())
    return total
