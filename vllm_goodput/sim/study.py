# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Several policies over the same traces, one per seed: one simulation each, and one result per policy over all."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vllm_goodput.bench import TraceRow, build_result, summarise, trace_duration_s
from vllm_goodput.bench.record import Record
from vllm_goodput.bench.replay import Observer
from vllm_goodput.config import RouterConfig
from vllm_goodput.predictor.factory import make_predictor
from vllm_goodput.router import Router
from vllm_goodput.sim.bound import upper_bound
from vllm_goodput.sim.pool import Simulation
from vllm_goodput.sim.spec import SimInstance, SimOptions

Result = dict[str, Any]


class StudyObserver(Observer, Protocol):
    """Told of progress."""

    def begin(self, policy: str, seed: int, requests: int) -> None:
        """A simulation of so many requests begins."""


@dataclass(frozen=True)
class Run:
    """One simulation's outcome.

    Args:
        policy: of the router.
        seed: of the trace and of the policy.
        duration_s: of the trace.
        records: one per request.
        instances: counters of each.
        wall_s: how long the simulation took.
    """

    policy: str
    seed: int
    duration_s: float
    records: Sequence[Record]
    instances: Mapping[str, Mapping[str, Any]]
    wall_s: float


@dataclass(frozen=True)
class Study:
    """What is to be simulated.

    Args:
        instances: the pool.
        router: configuration; its policy and seed are replaced.
        policies: to compare; each gets every trace.
        seeds: of traces, policies and jitter.
        trace: the trace of a seed.
        options: of every simulation.
    """

    instances: Sequence[SimInstance]
    router: RouterConfig
    policies: Sequence[str]
    seeds: Sequence[int]
    trace: Callable[[int], Sequence[TraceRow]]
    options: SimOptions = SimOptions()  # noqa: RUF009  (frozen)

    @property
    def simulations(self) -> int:
        """How many there are."""
        return len(self.policies) * len(self.seeds)

    def run(
        self, observer: StudyObserver | None = None, stop: Callable[[], bool] | None = None
    ) -> Iterator[Run]:
        """Simulate, all policies over the first trace, then over the next; a simulation cut short is dropped."""
        for seed in self.seeds:
            rows = self.trace(seed)
            for policy in self.policies:
                if observer is not None:
                    observer.begin(policy, seed, len(rows))
                run = self._one(policy, seed, rows, observer, stop)
                if stop is not None and stop():
                    return
                yield run

    def bound(self, seeds: Sequence[int]) -> Result | None:
        """What no policy can exceed over the traces of these seeds; None where the bound does not hold."""
        if any(
            change.slowdown is not None and change.slowdown < 1 for change in self.options.changes
        ):
            return None  # it takes the instances as they are at the beginning
        traces = [self.trace(seed) for seed in seeds]
        bounds = [
            upper_bound(rows, self.instances, migration=self.options.migration) for rows in traces
        ]
        met = sum(bound.met for bound in bounds)
        duration_s = sum(trace_duration_s(rows) for rows in traces)
        return {
            "met": met,
            "slo_attainment": met / sum(bound.requests for bound in bounds),
            "request_goodput": met / duration_s if duration_s > 0 else None,
        }

    def _one(
        self,
        policy: str,
        seed: int,
        rows: Sequence[TraceRow],
        observer: Observer | None,
        stop: Callable[[], bool] | None,
    ) -> Run:
        config = self.router.model_copy(update={"policy": policy, "seed": seed})
        router = Router(config, make_predictor(config))
        started_s = time.perf_counter()
        options = replace(self.options, seed=seed)
        simulation = Simulation(rows, self.instances, router, options, observer)
        records = simulation.run(stop)
        wall_s = time.perf_counter() - started_s
        return Run(policy, seed, trace_duration_s(rows), records, simulation.stats(), wall_s)


def complete(runs: Sequence[Run], policies: int) -> list[Run]:
    """The runs of those seeds that every policy has got through."""
    return list(runs[: len(runs) // policies * policies])


def results(
    runs: Sequence[Run],
    settings: Mapping[str, Any],
    trace: Mapping[str, Any],
    notes: Sequence[str],
    bound: Result | None = None,
) -> dict[str, Result]:
    """One result per policy, as of a replay of all traces one after the other.

    Args:
        runs: complete for every policy.
        settings: how they were made.
        trace: what was replayed.
        notes: shown prominently.
        bound: what Study.bound says.
    """
    by_policy: dict[str, list[Run]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    found = {}
    for policy, own in by_policy.items():
        seeds = _by_seed(own)
        result = build_result(
            _joined(own),
            sum(run.duration_s for run in own),
            settings={**settings, "policy": policy},
            trace={**trace, "rows": sum(len(run.records) for run in own)},
            notes=[*notes, *_bound_note(bound), *_seed_note(seeds)],
            exact_lengths=True,
        )
        found[policy] = result | {"benchmark": "vllm-goodput simulate"} | seeds
        if bound is not None:
            ratio = result["met"] / bound["met"] if bound["met"] else None
            found[policy]["upper_bound"] = bound | {"ratio": ratio}
    return found


def _bound_note(bound: Result | None) -> list[str]:
    if bound is None:
        return []
    goodput = bound["request_goodput"]
    rate = "" if goodput is None else f", {goodput:.3f} req/s"
    return [
        f"no policy can meet the SLOs of more than {bound['slo_attainment']:.1%} of these requests on this pool{rate}"
    ]


def _seed_note(seeds: Result) -> list[str]:
    error, count = seeds["goodput_standard_error"], len(seeds["seeds"])
    if error is None:
        return []
    mean = statistics.fmean(seed["request_goodput"] for seed in seeds["seeds"])
    return [f"goodput over {count} seeds: {mean:.3f} req/s, standard error {error:.3f}"]


def _joined(runs: Sequence[Run]) -> list[Record]:
    joined: list[Record] = []
    start_s = 0.0
    for run in runs:
        first = len(joined)
        joined += [_shifted(record, first, start_s) for record in run.records]
        start_s += run.duration_s
    return joined


def _shifted(record: Record, first: int, start_s: float) -> Record:
    finished_s = None if record.finished_s is None else record.finished_s + start_s
    return replace(
        record,
        index=record.index + first,
        arrival_s=record.arrival_s + start_s,
        finished_s=finished_s,
    )


def _by_seed(runs: Sequence[Run]) -> Result:
    """Goodput of each seed, and the standard error of their mean; None for one seed."""
    seeds = []
    for run in runs:
        summary = summarise(run.records, run.duration_s)
        seeds.append(
            {
                "seed": run.seed,
                "request_goodput": summary["request_goodput"],
                "slo_attainment": summary["slo_attainment"],
                "simulated_in_s": round(run.wall_s, 3),
                "instances": run.instances,
            }
        )
    values = [seed["request_goodput"] for seed in seeds if seed["request_goodput"] is not None]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"seeds": seeds, "goodput_standard_error": error}
