# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`benchmarks.sim_validation --loops`: the simulator's event loop against SimPy, with as little routing as possible."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from benchmarks import common
from benchmarks.sim_validation_cells import Cell, instances, trace
from vllm_goodput.config import RouterConfig
from vllm_goodput.predictor import LengthDistribution
from vllm_goodput.router import Decision, Dispatch, Prediction, RequestInfo, Router
from vllm_goodput.sim import SimOptions, Simulation
from vllm_goodput.sim.loop import Action, EventLoop, HeapLoop

DURATION_S, RATE, REPEATS = 90.0, 16.0, 5


class SimPyLoop:
    """An EventLoop over SimPy's Environment."""

    def __init__(self) -> None:
        import simpy

        self._environment = simpy.Environment()

    @property
    def now_s(self) -> float:
        """See EventLoop."""
        return float(self._environment.now)

    def at(self, at_s: float, action: Action) -> None:
        """See EventLoop."""
        event = self._environment.timeout(max(0.0, at_s - self.now_s))
        event.callbacks.append(lambda _: action())

    def run(self, stop: Callable[[], bool]) -> None:
        """See EventLoop."""
        while self._environment.peek() < float("inf") and not stop():
            self._environment.step()


class _InTurn(Router):
    """Sends each request to the next instance."""

    count = 0

    def route(
        self, info: RequestInfo, now_s: float, lengths: LengthDistribution | None = None
    ) -> Decision:
        assert lengths is not None
        names = list(self.instances)
        self.count += 1
        return Dispatch(names[self.count % len(names)], Prediction(0, 0, 0, 0.01, 1.0), lengths)


def compare_loops(console: Console) -> dict[str, Any]:
    """Best CPU time of several runs with each loop."""
    cell = Cell("pool", "round_robin", RATE)
    rows = trace(cell, DURATION_S, 0)
    results = []
    for kind in (HeapLoop, SimPyLoop):
        seconds = min(_time(kind(), cell) for _ in range(REPEATS))
        results.append({"loop": kind.__name__, "requests": len(rows), "cpu_s": seconds})
        console.print(f"{kind.__name__}: {seconds:.3f} s of CPU time for {len(rows)} requests")
    return common.report("sim_loops", {"rate": RATE, "duration_s": DURATION_S}, results)


def _time(loop: EventLoop, cell: Cell) -> float:
    router = _InTurn(RouterConfig(policy="round_robin", use_max_tokens=False))
    rows = trace(cell, DURATION_S, 0)
    simulation = Simulation(rows, instances(cell.pool), router, SimOptions(), loop=loop)
    started_s = time.process_time()
    simulation.run()
    return time.process_time() - started_s
