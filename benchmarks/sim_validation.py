# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""How well the simulator predicts real vLLM engines: goodput and latencies, simulated against measured.

One engine that emulates an L40S under three loads, and four that emulate an H100, an A100, an L40S and a T4 behind the
real gateway under several loads and policies. The simulator's only free constants, what HTTP adds, are fitted on one
load and policy of each pool and used for the others; targets are about those others alone. Emulated engines are the CPU
build of vLLM with padded steps, so this says nothing about the device profiles themselves. Takes about 15 minutes
(--quick: 5 minutes); --save and --load keep what was measured. --loops compares event loops instead.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console

from benchmarks import common
from benchmarks.common import Target
from benchmarks.sim_validation_cells import CELLS, POOLS
from benchmarks.sim_validation_fit import Comparison, compare, fit, predict
from benchmarks.sim_validation_live import Measured, measure
from benchmarks.sim_validation_loops import compare_loops
from vllm_goodput.bench.report import terminal_table
from vllm_goodput.cli.output import make_console
from vllm_goodput.emulation import MAX_VALID_OVERRUN_FRACTION
from vllm_goodput.errors import GoodputError
from vllm_goodput.sim import Overheads

LIMITS = {"goodput_error": 0.10, "e2el_p50_error": 0.15, "e2el_p95_error": 0.15}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__ or "")
    parser.add_argument(
        "--duration-s", type=float, help="length of each trace (default: 90, with --quick 25)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the traces")
    parser.add_argument("--pool", choices=sorted(POOLS), help="measure this one only")
    parser.add_argument("--policies", nargs="+", metavar="NAME", help="measure these only")
    parser.add_argument("--save", type=Path, metavar="PATH", help="keep what was measured here")
    parser.add_argument(
        "--load",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="take what was saved instead of measuring",
    )
    parser.add_argument("--loops", action="store_true", help="compare event loops instead")
    args = parser.parse_args(argv)
    if args.duration_s is None:
        args.duration_s = 25.0 if args.quick else 90.0
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, simulate, compare."""
    args = parse_args(argv)
    console = make_console(stderr=True)
    if args.loops:
        common.write(compare_loops(console), args.json)
        return 0
    try:
        durations, measured = _measured(args, console)
    except GoodputError as error:
        console.print(f"[red]error:[/] {error}")
        return error.exit_code
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been stopped")
        return 130
    overheads = {pool: _fitted(pool, measured, durations, args.seed) for pool in POOLS}
    comparisons = [
        compare(m, predict(m.cell, durations[m.cell.pool], args.seed, fitted))
        for m in measured
        if (fitted := overheads[m.cell.pool]) is not None
    ]
    _print(comparisons, overheads, console)
    settings = {
        "duration_s": durations,
        "seed": args.seed,
        "overheads": {pool: asdict(o) for pool, o in overheads.items() if o is not None},
    }
    results = [comparison.as_dict() for comparison in comparisons]
    common.write(
        common.report("sim_validation", settings, results, targets(comparisons)), args.json
    )
    return 0


def targets(comparisons: Sequence[Comparison]) -> list[Target]:
    """The largest errors over the cells that nothing was fitted on, of valid emulations."""
    found = []
    for pool in POOLS:
        held_out = [c for c in comparisons if c.cell.pool == pool and not c.cell.fitted and c.valid]
        for name, limit in LIMITS.items():
            worst = max((c.errors[name] for c in held_out), default=None)
            found.append(Target(f"{pool}_{name}", worst, "<=", limit))
    return found


def _measured(
    args: argparse.Namespace, console: Console
) -> tuple[dict[str, float], list[Measured]]:
    """What was measured, and how long the traces were, by pool."""
    durations = dict.fromkeys(POOLS, float(args.duration_s))
    if args.load:
        found: list[Measured] = []
        for path in args.load:
            data = orjson.loads(path.read_bytes())
            own = [Measured.from_dict(cell) for cell in data["cells"]]
            durations |= {m.cell.pool: float(data["duration_s"]) for m in own}
            found += own
        return durations, found
    return durations, asyncio.run(_measure(args, console))


async def _measure(args: argparse.Namespace, console: Console) -> list[Measured]:
    """Measure the chosen pools; what there is is saved after each cell."""
    found: list[Measured] = []
    for pool in POOLS:
        if args.pool not in (None, pool):
            continue
        cells = [
            cell
            for cell in CELLS
            if cell.pool == pool and (not args.policies or cell.policy in args.policies)
        ]
        if not cells:
            continue
        async for one in measure(cells, args.duration_s, args.seed, console):
            found.append(one)
            if args.save:
                data = {"duration_s": args.duration_s, "cells": [m.as_dict() for m in found]}
                args.save.write_bytes(orjson.dumps(data))
    return found


def _fitted(
    pool: str, measured: Sequence[Measured], durations: dict[str, float], seed: int
) -> Overheads | None:
    chosen = [m for m in measured if m.cell.pool == pool and m.cell.fitted]
    return fit(chosen[0], durations[pool], seed) if chosen else None


def _print(
    comparisons: Sequence[Comparison], overheads: dict[str, Overheads | None], console: Console
) -> None:
    columns = ["goodput", "sim.", "p50 ms", "sim.", "p95 ms", "sim.", "overruns", ""]
    rows = []
    for c in comparisons:
        pairs = [f"{value:.2f}" if value < 100 else f"{value:,.0f}" for value in c.pairs]
        use = "fitted" if c.cell.fitted else "predicted"
        rows.append([c.cell.name, *pairs, f"{c.overrun_fraction:.1%}", use])
    console.print(terminal_table("cell", columns, rows))
    for pool, fitted in overheads.items():
        if fitted is not None:
            console.print(
                f"{pool}: {fitted.request_s * 1e3:.1f} ms per request and "
                f"{fitted.prompt_token_s * 1e6:.1f} µs per prompt token before the engine, "
                f"{fitted.token_s * 1e3:.1f} ms from a step to the client"
            )
    for target in targets(comparisons):
        value = "-" if target.value is None else f"{target.value:.3f}"
        console.print(f"{target.name}: {value} (target {target.op} {target.target:g})")
    invalid = [c.cell.name for c in comparisons if not c.valid]
    if invalid:
        console.print(
            f"[yellow]not valid, more than {MAX_VALID_OVERRUN_FRACTION:.0%} of an engine's steps overran: "
            f"{', '.join(invalid)}"
        )


if __name__ == "__main__":
    sys.exit(main())
