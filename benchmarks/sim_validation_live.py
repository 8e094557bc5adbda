# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Measured side of `benchmarks.sim_validation`: real engines, real gateway, one replay per cell."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.pool_live_engines import Engines
from benchmarks.sim_validation_cells import (
    CLIENT_TIMEOUT_S,
    MODEL,
    VOCAB_SIZE,
    Cell,
    deployment,
    trace,
)
from benchmarks.tiny_models import tiny_llama
from vllm_goodput.bench import Record, ReplayOptions, replay
from vllm_goodput.bench.progress import ReplayProgress
from vllm_goodput.deploy import Deployment
from vllm_goodput.deploy.report import make_reporter
from vllm_goodput.slo import SLO

ROOT = Path(__file__).parents[1]
IDLE_TIMEOUT_S = 60.0
KEPT = ("index", "arrival_s", "prompt_len", "output_len", "completed", "reject_reason")
KEPT_TIMES = ("ttft_s", "e2el_s", "late_s", "instance", "finished_s", "status", "error")


@dataclass(frozen=True)
class Measured:
    """A cell's outcome.

    Args:
        cell: what was measured.
        records: one per request.
        overruns: by engine, how many steps were slower than the emulated device, as Counters.as_dict.
    """

    cell: Cell
    records: Sequence[Record]
    overruns: dict[str, dict[str, Any]]

    @property
    def overrun_fraction(self) -> float:
        """Of the engine with the most."""
        return max(float(o["overrun_fraction"]) for o in self.overruns.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cell": asdict(self.cell),
            "overruns": self.overruns,
            "requests": [
                {name: getattr(r, name) for name in (*KEPT, *KEPT_TIMES)} | {"slo": r.slo.as_dict()}
                for r in self.records
            ],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measured:
        """From JSON."""
        records = [Record(**{**row, "slo": SLO(**row["slo"])}) for row in data["requests"]]
        return cls(Cell(**data["cell"]), records, data["overruns"])


async def measure(
    cells: Sequence[Cell], duration_s: float, seed: int, console: Console
) -> AsyncIterator[Measured]:
    """Measure the cells of one pool, one after the other, over the same engines.

    Args:
        cells: of one pool.
        duration_s: of each trace.
        seed: of the traces.
        console: for progress.
    """
    os.chdir(ROOT)  # the deployment's paths are relative to it
    tiny_llama(MODEL)
    async with Deployment(
        deployment(cells[0].pool), gateway=False, reporter=make_reporter()
    ) as running:
        engines = Engines(running.instance_urls, running.plan.secret)
        for index, cell in enumerate(cells):
            console.print(f"\n[bold]{cell.name}[/] ({index + 1} of {len(cells)})")
            async with running.run_gateway(policy=cell.policy) as url:
                # Other prompts in each cell, lest one find those of another in the prefix cache.
                options = ReplayOptions(
                    url=url,
                    vocab_size=VOCAB_SIZE,
                    seed=seed * 100 + index,
                    timeout_s=CLIENT_TIMEOUT_S,
                )
                rows = trace(cell, duration_s, seed)
                before = await engines.counters()
                async with ReplayProgress(len(rows), console) as progress:
                    records = await replay(rows, options, observer=progress)
                await engines.until_idle(IDLE_TIMEOUT_S)
                after = await engines.counters()
            overruns = {n: after[n].since(before[n]).as_dict() for n in after}
            yield Measured(cell, records, overruns)
