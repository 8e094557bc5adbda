# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Goodput of one pool of unequal devices under our gateway and under peer routers: real engines, real routers.

Four vLLM engines emulate an H100, an A100, an L40S and a T4 at one time scale. One agentic trace at about the pool's
capacity is replayed through our gateway and through the peers that `make peers` installs, at three SLO levels, twice in
opposite orders. Deadlines: the level times each request's isolated latency on the second-fastest device. Peers know no
deadlines; the client judges all alike. --resume goes on with an interrupted run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks import common
from benchmarks import pool_live_trace as trace
from benchmarks.pool_live_args import (
    MODEL,
    ROOT,
    deployment_config,
    gateway_settings,
    parse_args,
    settings_of,
)
from benchmarks.pool_live_cells import Cell, Result, Store, plan
from benchmarks.pool_live_engines import Engines
from benchmarks.pool_live_peers import run_peer
from benchmarks.pool_live_report import OURS, as_rows, judge, levels, print_levels, write_pages
from benchmarks.pool_live_run import RAMP_S, Bench, Router, Workload, is_valid, measure_capacity
from benchmarks.tiny_models import tiny_llama
from vllm_goodput.cli.interrupts import EXIT_INTERRUPTED
from vllm_goodput.cli.limits import allow_many_connections
from vllm_goodput.config import DeploymentConfig
from vllm_goodput.deploy import Deployment
from vllm_goodput.deploy.report import make_reporter
from vllm_goodput.errors import ConfigError, GoodputError

# For the estimate at the start: engines, capacity, and what a cell takes beside its trace.
START_S, CAPACITY_S, CELL_EXTRA_S = 90.0, 60.0, 30.0
CAPACITY_OVERLOAD = 1.5


class Run:
    """One run of the benchmark, as far as it has come.

    Args:
        args: the command line.
        console: for progress.
    """

    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self.args = args
        self.console = console
        self.store = Store(args.out, args.resume)
        self.cells = plan(args.levels, args.repeats, [OURS, *(peer.name for peer in args.peers)])
        self.missing: dict[str, str] = {}
        # Of the routers, for the report.
        self.commands: dict[str, str] = {}
        self.settings: dict[str, Any] = {}

    @property
    def results(self) -> dict[Cell, Result]:
        """Of the finished cells."""
        found = {cell: self.store.load(cell) for cell in self.cells}
        return {cell: result for cell, result in found.items() if result is not None}

    @property
    def open_cells(self) -> list[Cell]:
        """Those to measure: without a result, or one whose emulation was not valid."""
        results = self.results
        return [cell for cell in self.cells if cell not in results or not is_valid(results[cell])]

    def announce(self) -> None:
        """Say what is to come and how long it takes."""
        args, open_count = self.args, len(self.open_cells)
        cell_s = args.warmup_s + args.duration_s + CELL_EXTRA_S
        total_s = START_S + (CAPACITY_S if args.rate is None else 0.0) + open_count * cell_s
        quick = "quick: too short to conclude anything from. " if args.quick else ""
        self.console.print(
            f"{quick}{open_count} cells to measure ({len(self.cells)} in all: {len(args.levels)} SLO levels x "
            f"{args.repeats} repeats x {1 + len(args.peers)} routers), about "
            f"{total_s / 60 if open_count else 0:.0f} minutes. Ctrl-C ends it; --resume goes on."
        )

    async def carry_out(self) -> None:
        """Measure what is open.

        Raises:
            GoodputError: the engines did not start, or kept cells have other settings.
        """
        self._stop_on_sigterm()
        if not (open_cells := self.open_cells):
            self.settings = self.store.settings() or {}
            return
        config = deployment_config(self.args)
        async with Deployment(config, gateway=False, reporter=make_reporter()) as deployment:
            rate = await self._rate(deployment)
            self.settings = settings_of(self.args, rate)
            self.store.begin(self.settings)
            workload, model_file = self._workload(config, rate)
            engines = self._engines(deployment)
            routers = self._routers(deployment, model_file)
            bench = Bench(routers, engines, workload, self.store, self.console, self.missing)
            await bench.run(open_cells)

    def _routers(self, deployment: Deployment, model_file: Path | None) -> dict[str, Router]:
        ours = gateway_settings(model_file)
        urls = list(deployment.instance_urls.values())
        self.commands[OURS] = f"vllm-goodput route; router: {ours}"
        found: dict[str, Router] = {OURS: partial(deployment.run_gateway, name="ours", **ours)}
        for peer in self.args.peers:
            found[peer.name] = partial(run_peer, peer, urls, deployment.plan.log_dir)
            program, *flags = peer.argv(8000, 9000, ["URL..."])
            self.commands[peer.name] = shlex.join([Path(program).name, *flags])
            if (problem := peer.problem()) is not None:
                self.missing[peer.name] = problem
                self.console.print(f"{peer.name}: not measured: {problem}", markup=False)
        return found

    async def _rate(self, deployment: Deployment) -> float:
        """Requests per second of the trace: given, kept from the run that is resumed, or measured."""
        args = self.args
        given = (self.store.settings() or {}).get("rate") if args.rate is None else args.rate
        if given is not None:
            return float(given)
        window_s = 15.0 if args.quick else 30.0
        self.console.print("\nmeasuring the capacity (weighted_least_request under a backlog)")
        guess = trace.capacity_estimate(
            trace.agentic_rows(args.seed, 60.0, 20.0), trace.DEVICES, args.scale
        )
        rows = trace.agentic_rows(args.seed + 1, RAMP_S + window_s, CAPACITY_OVERLOAD * guess)
        work = Workload(rows, 0.0, window_s, trace.isolated_time(trace.DEVICES, args.scale))
        settings = gateway_settings() | {"policy": "weighted_least_request"}
        async with deployment.run_gateway(name="capacity", **settings) as url:
            capacity = await measure_capacity(url, work, window_s)
        if bad := [
            n for n, c in (await self._engines(deployment).counters()).items() if not c.valid
        ]:
            self.console.print(f"[red]warning:[/] over 5 % overruns on {', '.join(bad)} meanwhile")
        if not capacity:
            raise ConfigError("no request was completed while measuring the capacity; see the logs")
        rate: float = round(args.load * capacity, 1)
        self.console.print(f"capacity {capacity:.1f} req/s; the trace has {rate:g} req/s")
        return rate

    def _workload(self, config: DeploymentConfig, rate: float) -> tuple[Workload, Path | None]:
        """The trace, and the length predictor's model file if it has one of its own."""
        args = self.args
        isolated_s = trace.isolated_time(trace.DEVICES, args.scale)
        span_s = args.warmup_s + args.duration_s
        if args.pairs is None:
            rows = trace.agentic_rows(args.seed, span_s, rate)
            return Workload(rows, args.warmup_s, args.duration_s, isolated_s), None
        from benchmarks.length_goodput import from_pairs

        own = argparse.Namespace(**{**vars(args), "duration_s": span_s, "rate": rate})
        setup = from_pairs(config, own, self.console)
        work = Workload(
            rows=trace.cut_off(setup.rows, span_s),
            warmup_s=args.warmup_s,
            duration_s=args.duration_s,
            isolated_s=isolated_s,
            model=setup.served,
            endpoint="chat",
            source=setup.source,
        )
        return work, setup.model_file

    @staticmethod
    def _engines(deployment: Deployment) -> Engines:
        return Engines(deployment.instance_urls, deployment.plan.secret)

    def _stop_on_sigterm(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

    def conclude(self) -> None:
        """Print and write what was found."""
        args, results = self.args, self.results
        if not results:
            self.console.print("nothing was measured")
            return
        print_levels(results, self.missing, Console(highlight=False, stderr=args.json == "-"))
        targets = judge(levels(results))
        for t in targets:
            self.console.print(f"{t.name}: {t.value} (target {t.op} {t.target:g}, met: {t.met})")
        settings = self.settings | {"repeats": args.repeats, "quick": args.quick}
        page = write_pages(args.out, results, self.missing, settings, self.commands)
        settings |= {"not_measured": self.missing, "commands": self.commands}
        common.write(common.report("pool_live", settings, as_rows(results), targets), args.json)
        self.console.print(
            f"\nreports: {page}, one per level beside it; cells: {args.out / 'cells'}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; what is finished is reported even when it was interrupted."""
    console = Console(stderr=True, highlight=False)
    try:
        args = parse_args(argv, __doc__ or "")
        os.chdir(ROOT)  # the model's path is relative to it
        tiny_llama(MODEL)
        allow_many_connections()
        run = Run(args, console)
        run.announce()
        status = measure(run, console)
        run.conclude()
    except GoodputError as error:
        console.print(f"[red]error:[/] {escape(str(error))}")
        return error.exit_code
    return status


def measure(run: Run, console: Console) -> int:
    """Measure what is open; returns the exit status, since what is finished is worth a report in any case."""
    try:
        asyncio.run(run.carry_out())
    except GoodputError as error:
        console.print(f"[red]error:[/] {escape(str(error))}")
        return error.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("\ninterrupted; all processes are stopped; --resume goes on from here")
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
