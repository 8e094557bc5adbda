# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Running the cells of `benchmarks.pool_live`: a router, a warm-up that does not count, the replay, what engines say.

Routers are given as functions that run one, so the same code drives real engines and fakes. Goodput is judged by the
client from the trace's SLOs; a router need not know them.
"""

from __future__ import annotations

import time
from asyncio import Event, get_running_loop
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.console import Console

from benchmarks.pool_live_cells import Cell, Result, Store
from benchmarks.pool_live_engines import Counters, Engines
from benchmarks.pool_live_trace import IsolatedTime, digest, with_slo, with_text
from vllm_goodput.bench import Record, ReplayOptions, TraceRow, build_result, replay
from vllm_goodput.bench.progress import ReplayProgress
from vllm_goodput.errors import GoodputError

Router = Callable[[], AbstractAsyncContextManager[str]]
# Clients give up after this long; longer where the trace has later deadlines.
CLIENT_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 90.0
RAMP_S = 10.0  # until every engine has a backlog
SETTLED_S = 1.0  # after the last deadline


@dataclass(frozen=True)
class Workload:
    """What every cell replays.

    Args:
        rows: the trace, its warm-up included; without SLOs.
        warmup_s: requests that arrive before this do not count.
        duration_s: what follows, seconds; goodput refers to it.
        isolated_s: isolated E2EL that SLOs are multiples of.
        model: served name.
        endpoint: which endpoint the rows are for.
        source: says where they come from.
    """

    rows: Sequence[TraceRow]
    warmup_s: float
    duration_s: float
    isolated_s: IsolatedTime
    model: str = "tiny"
    endpoint: Literal["completions", "chat"] = "completions"
    source: str = "agentic_mix"

    def options(self, url: str, rows: Sequence[TraceRow]) -> ReplayOptions:
        """Of a replay of `rows` against `url`."""
        last_ms = max((row.slo.e2el_ms or 0.0 for row in rows), default=0.0)
        return ReplayOptions(
            url=url,
            model=self.model,
            endpoint=self.endpoint,
            timeout_s=max(CLIENT_TIMEOUT_S, last_ms / 1e3),
            extra_body={"temperature": 0},
        )


@dataclass
class Bench:
    """Runs cells one after the other.

    Args:
        routers: by name.
        engines: the instances that all of them share.
        workload: the trace.
        store: where finished cells are kept.
        console: for progress.
    """

    routers: Mapping[str, Router]
    engines: Engines
    workload: Workload
    store: Store
    console: Console
    # Why a router could not be measured.
    missing: dict[str, str] = field(default_factory=dict)

    async def run(self, cells: Sequence[Cell]) -> None:
        """Measure cells. A router that fails once is left out from then on.

        Raises:
            DeployError: an engine has died.
        """
        began_s = time.monotonic()
        for done, cell in enumerate(cells):
            if cell.router in self.missing:
                continue
            left = _left(began_s, done, len(cells))
            self.console.print(f"\n[bold]{cell.key}[/] ({done + 1} of {len(cells)}{left})")
            await self.engines.require_alive()
            try:
                result = await self._measure(cell)
            except GoodputError as error:
                self.missing[cell.router] = str(error)
                self.console.print(f"{cell.router}: not measured: {error}", markup=False)
            else:
                await self.engines.require_alive()
                self.store.save(cell, result)

    async def _measure(self, cell: Cell) -> Result:
        rows = with_slo(self.workload.rows, cell.level, self.workload.isolated_s)
        texts = with_text(rows, cell.key)
        idle = await self.engines.until_idle(IDLE_TIMEOUT_S)
        async with self.routers[cell.router]() as url:
            before = await self.engines.counters()
            options = self.workload.options(url, texts)
            stop = _stop_in(last_deadline_s(texts) + SETTLED_S)
            async with ReplayProgress(len(texts), self.console) as progress:
                records = await replay(texts, options, observer=progress, stop=stop)
            after = await self.engines.counters()
        counters = {name: after[name].since(before[name]) for name in after}
        result = self._result(cell, records, counters, options.timeout_s)
        result["trace"]["sha256"] = digest(rows)
        if not idle:
            result["warnings"].append("an engine still had requests of an earlier cell")
        self._show(result)
        return result

    def _result(
        self,
        cell: Cell,
        records: Sequence[Record],
        counters: Mapping[str, Counters],
        timeout_s: float,
    ) -> Result:
        work = self.workload
        result = build_result(
            list(counted(records, work.warmup_s)),
            work.duration_s,
            settings={"level": cell.level, "repeat": cell.repeat + 1, "router": cell.router},
            trace={"name": work.source, "rows": len(records)},
            notes=[
                f"E2EL SLOs: {cell.level:g} x each request's isolated latency on the second-fastest device",
                f"the first {work.warmup_s:g} s of the trace are warm-up and do not count",
                f"clients give up after {timeout_s:g} s, and all when the last deadline has passed; such requests "
                "count as failed",
                *self.engines.notes(counters),
            ],
            exact_lengths=work.endpoint == "completions",
        )
        bad = [name for name, c in counters.items() if not c.valid]
        if bad:
            result["warnings"].append(
                f"not a valid emulation: over 5 % overruns on {', '.join(bad)}"
            )
        return result | {"engines": {name: c.as_dict() for name, c in counters.items()}}

    def _show(self, result: Mapping[str, Any]) -> None:
        overruns = max(e["overrun_fraction"] for e in result["engines"].values())
        self.console.print(
            f"goodput {result['request_goodput']:.2f} req/s, {result['met']} of {result['offered']} in time, "
            f"{sum(result['rejected'].values())} rejected, {result['failed']} failed; "
            f"steps that overran: at most {overruns:.1%}"
        )


def is_valid(result: Mapping[str, Any]) -> bool:
    """Whether every engine emulated its device well enough."""
    return all(engine["valid"] for engine in result["engines"].values())


def counted(records: Iterable[Record], warmup_s: float) -> Iterable[Record]:
    """The records of requests after the warm-up, with times from its end."""
    for record in records:
        if record.arrival_s >= warmup_s:
            finished_s = None if record.finished_s is None else record.finished_s - warmup_s
            yield replace(record, arrival_s=record.arrival_s - warmup_s, finished_s=finished_s)


async def measure_capacity(url: str, workload: Workload, window_s: float) -> float:
    """Completions per second under a backlog; ends with the window.

    Args:
        url: a router that knows no deadlines.
        workload: a trace whose rate is beyond the pool's capacity and that lasts RAMP_S + window_s.
        window_s: what is measured, after the ramp.
    """
    rows = with_text(workload.rows, "capacity")
    stop = _stop_in(RAMP_S + window_s)
    records = await replay(rows, workload.options(url, rows), stop=stop)
    ends = [r.finished_s for r in records if r.completed and r.finished_s is not None]
    return sum(RAMP_S <= end_s <= RAMP_S + window_s for end_s in ends) / window_s


def last_deadline_s(rows: Iterable[TraceRow]) -> float:
    """When the last of the rows' E2EL SLOs expires, from the start of the trace; nothing can be met after it."""
    return max(row.arrival_s + (row.slo.e2el_ms or 0.0) / 1e3 for row in rows)


def _stop_in(delay_s: float) -> Event:
    """Set after a while."""
    stop = Event()
    get_running_loop().call_later(delay_s, stop.set)
    return stop


def _left(began_s: float, done: int, count: int) -> str:
    if not done:
        return ""
    left_s = (time.monotonic() - began_s) / done * (count - done)
    return f", about {left_s / 60:.0f} min left"
