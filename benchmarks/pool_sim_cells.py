# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One simulation of pool_sim: a workload at a load and an SLO level, under one policy with one kind of lengths."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from benchmarks.pool_live_trace import with_slo
from benchmarks.pool_sim_traces import Data, isolated_s, make_trace
from vllm_goodput.bench import TraceRow
from vllm_goodput.config import PredictorConfig, RouterConfig
from vllm_goodput.emulation import load_profile
from vllm_goodput.predictor import LengthPredictor, store
from vllm_goodput.predictor.factory import make_predictor
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.router import Router
from vllm_goodput.sim import SimInstance, SimOptions, simulate
from vllm_goodput.sim.bound import upper_bound

# Size of each device's KV cache for an 8B model: memory less weights, at 128 KiB a token, rounded down.
KV_TOKENS = {"h100": 400_000, "a100": 400_000, "l40s": 200_000, "t4": 45_000}
REFERENCE = (
    "a100"  # the second-fastest: SLO levels are multiples of a request's latency alone on it
)
MAX_NUM_SEQS = 64
# The name of each kind of lengths in the tables, and in the router's settings.
LENGTHS = {
    "constant": "constant",
    "histogram": "histogram",
    "learned": "learned",
    "oracle": "max_tokens",
}
# Requests of the backlog that tells a pool's capacity, per instance, and those left out at both ends.
BACKLOG = 1000
BACKLOG_FROM, BACKLOG_TO = 0.2, 0.7


@dataclass(frozen=True)
class Cell:
    """What is simulated.

    Args:
        workload: see pool_sim_traces.
        level: SLO level.
        policy: of the router.
        lengths: a name in LENGTHS.
        migration: whether running requests may move.
        load: arrival rate over the pool's capacity.
        burstiness: shape of the gaps' gamma distribution.
        copies: of each of the four devices.
        seed: of trace and policy.
        requests: in the trace.
    """

    workload: str
    level: float
    policy: str
    lengths: str = "learned"
    migration: bool = False
    load: float = 1.0
    burstiness: float = 1.0
    copies: int = 1
    seed: int = 0
    requests: int = 1000

    @property
    def key(self) -> str:
        """Tells cells apart."""
        return "/".join(str(value) for value in asdict(self).values())


def pool(copies: int = 1) -> list[SimInstance]:
    """Four kinds of devices, `copies` of each."""
    return [
        SimInstance(
            name=f"{name}-{i}" if copies > 1 else name,
            profile=load_profile(name),
            max_num_seqs=MAX_NUM_SEQS,
            kv_tokens=kv_tokens,
        )
        for i in range(copies)
        for name, kv_tokens in KV_TOKENS.items()
    ]


class Bench:
    """What every cell needs, in one process.

    Args:
        data: to replay.
        capacity: requests per second of the pool, by workload.
    """

    def __init__(self, data: Data, capacity: dict[str, float]) -> None:
        self._data = data
        self._capacity = capacity
        self._model: MoEModel | None = None

    def run(self, cell: Cell) -> dict[str, Any]:
        """Simulate a cell; returns its figures."""
        rows = self.trace(cell)
        config = self._config(cell.policy, cell.lengths, cell.seed)
        router = Router(config, self._predictor(config))
        options = SimOptions(migration=cell.migration)
        records = simulate(rows, pool(cell.copies), router, options=options)
        outcomes = Counter(record.outcome for record in records)
        return {
            **asdict(cell),
            "attainment": outcomes["met"] / len(records),
            "goodput": outcomes["met"] / max(1e-9, rows[-1].arrival_s),
            "rejected": outcomes["rejected"] / len(records),
            "missed": outcomes["missed"] / len(records),
            "migrations": sum(record.migrations for record in records) / len(records),
        }

    def bound(self, cell: Cell) -> float:
        """No policy attains more."""
        rows = self.trace(cell)
        return upper_bound(rows, pool(cell.copies), migration=True).slo_attainment or 0.0

    def trace(self, cell: Cell) -> list[TraceRow]:
        """The cell's trace."""
        rate = self._capacity[cell.workload] * cell.load * cell.copies
        rows = _trace(self._data, cell.workload, cell.requests, rate, cell.seed, cell.burstiness)
        return with_slo(rows, cell.level, partial(isolated_s, load_profile(REFERENCE)))

    def measure_capacity(self, workload: str) -> float:
        """Requests per second of the pool under a permanent backlog, by weighted_least_request.

        The turns of a trace depend a little on its rate, so it is measured twice.
        """
        rate = 100.0
        for _ in range(2):
            rows = make_trace(self._data.test, workload, 4 * BACKLOG, rate, seed=0)
            together = [replace(row, arrival_s=i * 1e-4) for i, row in enumerate(rows)]
            config = self._config("weighted_least_request", "oracle", 0)
            router = Router(config, self._predictor(config))
            records = simulate(together, pool(), router, options=SimOptions(migration=False))
            ends = sorted(r.finished_s for r in records if r.finished_s is not None)
            first, last = int(BACKLOG_FROM * len(ends)), int(BACKLOG_TO * len(ends))
            rate = (last - first) / (ends[last] - ends[first])
        return rate

    def _config(self, policy: Any, lengths: str, seed: int) -> RouterConfig:
        return RouterConfig(
            policy=policy,
            predictor=PredictorConfig.model_validate({"kind": LENGTHS[lengths]}),
            use_max_tokens=lengths == "oracle",
            initial_output_len=self._data.mean_len,
            seed=seed,
        )

    def _predictor(self, config: RouterConfig) -> LengthPredictor:
        if config.predictor.kind != "learned":
            return make_predictor(config)
        if self._model is None:
            self._model = store.load(self._data.model)
        return MoEPredictor(self._model, use_max_tokens=False)


@lru_cache(maxsize=4)
def _trace(
    data: Data, workload: str, count: int, rate: float, seed: int, burstiness: float
) -> Sequence[TraceRow]:
    return make_trace(data.test, workload, count, rate, seed, burstiness)


_bench: Bench | None = None


def start_worker(path: Path) -> None:
    """Make a worker process ready: `path` holds what `Bench` needs."""
    global _bench
    os.environ["OMP_WAIT_POLICY"] = "passive"
    data, capacity = pickle.loads(path.read_bytes())
    _bench = Bench(data, capacity)


def run_cell(cell: Cell) -> dict[str, Any]:
    """In a worker: simulate; a policy named "bound" asks for the bound."""
    assert _bench is not None
    if cell.policy == "bound":
        return {**asdict(cell), "attainment": _bench.bound(cell)}
    return _bench.run(cell)
