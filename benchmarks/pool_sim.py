# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Every routing policy on a simulated pool of four unequal devices: agentic workloads, SLO levels, loads, lengths.

The real router with the real predictor drives simulated vLLM engines (docs/simulator.md). Traces replay recorded
conversations on which the length model was not trained. The policy `goodput` was named beforehand; beside every result
stands the bound that no policy exceeds. Four parts: the grid of workloads and SLO levels at 1.0x capacity, other loads,
other kinds of lengths with migration on and off, and 512 instances. Simulated cells are kept in --out; --resume goes on
from them.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from benchmarks import common, demo
from benchmarks.pool_sim_cells import LENGTHS, Bench, Cell, run_cell, start_worker
from benchmarks.pool_sim_report import (
    OURS,
    compare,
    print_comparisons,
    print_part,
    targets,
    write_html,
)
from benchmarks.pool_sim_traces import WORKLOADS, load
from vllm_goodput.router.policies import POLICIES

LEVELS = (1.5, 2.5, 4.0, 7.0, 12.0)
# Of the parts beside the grid.
SOME_POLICIES = (
    OURS,
    "just_enough",
    "weighted_least_request",
    "weighted_least_request_reject",
    "fastest_reject",
    "shortest_predicted_reject",
    "llumnix",
)
MIGRATING = (OURS, "just_enough", "llumnix")
LARGE_COPIES = 128
Row = dict[str, Any]


def grid(args: argparse.Namespace) -> Iterator[Cell]:
    """Every policy at 1.0x capacity, and the bound."""
    policies = [*args.policies, "bound"]
    for workload, level, seed in product(args.workloads, args.levels, range(args.seeds)):
        for policy in policies:
            yield Cell(workload, level, policy, seed=seed, requests=args.requests)


def loads(args: argparse.Namespace) -> Iterator[Cell]:
    """Lighter and heavier load, and bursts."""
    for load_, burstiness in ((0.7, 1.0), (1.3, 1.0), (1.0, 0.25)):
        for workload, level, seed in product(args.workloads, (2.5, 7.0), range(args.seeds)):
            for policy in SOME_POLICIES:
                yield Cell(
                    workload,
                    level,
                    policy,
                    load=load_,
                    burstiness=burstiness,
                    seed=seed,
                    requests=args.requests,
                )


def lengths(args: argparse.Namespace) -> Iterator[Cell]:
    """Other kinds of lengths; migration off and on."""
    for workload, level, seed in product(args.workloads, (2.5, 7.0), range(args.seeds)):
        for policy, kind in product(SOME_POLICIES, LENGTHS):
            for migration in (False, True) if policy in MIGRATING else (False,):
                yield Cell(
                    workload, level, policy, kind, migration, seed=seed, requests=args.requests
                )


def large(args: argparse.Namespace) -> Iterator[Cell]:
    """The same devices 128 times over, at 128 times the rate."""
    for copies, requests in ((1, args.requests), (LARGE_COPIES, 40 * args.requests)):
        for policy, level in product((OURS, "weighted_least_request_reject"), (2.5, 7.0)):
            yield Cell("mix", level, policy, copies=copies, requests=requests)


PARTS = {"grid": grid, "loads": loads, "lengths": lengths, "large": large}


def run(args: argparse.Namespace, console: Console) -> dict[str, list[Row]]:
    """Rows of every part; those kept from an earlier run are not simulated again."""
    data = load(args.pairs, args.out, args.data_seed, args.quick, console.print)
    bench = Bench(data, {})
    capacity = {name: bench.measure_capacity(name) for name in args.workloads}
    console.print(
        "capacity, requests/s:", {name: round(rate, 1) for name, rate in capacity.items()}
    )
    shared = args.out / "worker.pkl"
    shared.write_bytes(pickle.dumps((data, capacity)))
    kept = args.out / "cells.jsonl"
    if not args.resume:
        kept.unlink(missing_ok=True)
    known = {row["key"]: row for row in map(json.loads, kept.open())} if kept.exists() else {}
    cells = {part: list(dict.fromkeys(PARTS[part](args))) for part in args.parts}
    todo = list(dict.fromkeys(c for part in cells.values() for c in part if c.key not in known))
    columns = (
        "[progress.description]{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with (
        ProcessPoolExecutor(args.processes, initializer=start_worker, initargs=(shared,)) as pool,
        kept.open("a") as log,
        Progress(*columns, console=console) as bar,
    ):
        task = bar.add_task("simulations", total=len(todo))
        for cell, row in zip(todo, pool.map(run_cell, todo), strict=True):
            known[cell.key] = {"key": cell.key, **row}
            log.write(json.dumps(known[cell.key]) + "\n")
            log.flush()
            bar.advance(task)
    return {part: [known[cell.key] for cell in part_cells] for part, part_cells in cells.items()}


def print_all(parts: dict[str, list[Row]], console: Console) -> None:
    """Every table."""
    print_part(
        "grid: attainment by SLO level", parts.get("grid", []), ("workload", "policy"), console
    )
    print_part(
        "other loads", parts.get("loads", []), ("workload", "load", "burstiness", "policy"), console
    )
    print_part(
        "other lengths",
        parts.get("lengths", []),
        ("workload", "policy", "lengths", "migration"),
        console,
    )
    print_part("pool size", parts.get("large", []), ("copies", "policy"), console)
    print_comparisons(compare(parts.get("grid", [])), console)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__ or "")
    parser.add_argument(
        "--pairs",
        type=Path,
        default=Path("../shared/data/agentic"),
        help="folder of recorded (prompt, output) pairs, JSONL",
    )
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=None, help="to run")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--levels", nargs="+", type=float, default=list(LEVELS), help="SLO levels")
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=sorted(POLICIES),
        default=list(POLICIES),
        help="of the grid",
    )
    parser.add_argument(
        "--seeds", type=int, help="traces per cell (default: 1 with --quick, else 5)"
    )
    parser.add_argument(
        "--requests", type=int, help="per trace (default: 300 with --quick, else 1500)"
    )
    parser.add_argument("--processes", type=int, default=2, help="simulations at a time")
    parser.add_argument("--data-seed", type=int, default=0, help="of the split of conversations")
    parser.add_argument("--resume", action="store_true", help="keep what --out has already")
    parser.add_argument(
        "--out", type=Path, default=demo.ROOT / "out" / "pool-sim", help="report directory"
    )
    args = parser.parse_args(argv)
    args.seeds = args.seeds or (1 if args.quick else 5)
    args.requests = args.requests or (300 if args.quick else 1500)
    args.parts = args.parts or (["grid"] if args.quick else list(PARTS))
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print the tables, write JSON and plots."""
    args = parse_args(argv)
    console = Console(stderr=args.json == "-")
    args.out.mkdir(parents=True, exist_ok=True)
    parts = run(args, console)
    print_all(parts, console)
    figures = targets(compare(parts.get("grid", [])))
    for figure in figures:
        console.print(f"{figure.name}: {figure.value} (target {figure.op} {figure.target})")
    report = args.out / "pool-sim.html"
    write_html(report, parts.get("grid", []), "Routing policies on a simulated pool")
    console.print(f"plots: {report}")
    rows = [{"part": part, **row} for part, found in parts.items() for row in found]
    settings = {name: str(value) for name, value in vars(args).items()}
    common.write(common.report("pool_sim", settings, rows, figures), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
