# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Predicted output lengths: the mixture of experts against simpler predictors, on the same held-out rows.

Rows are (prompt, output) pairs in the form that `vllm_goodput.predictor.dataset.read_pairs` reads. They are held out
in five seeded folds that keep together all sessions which begin with the same prompt; everything is trained again per
fold. Predictors that learn as requests finish get the held-out sessions in a random order, each one's turns in theirs,
and must predict a row before they see its length. Tasks and models are also left out altogether, and met as new.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import common
from benchmarks import predictor_parts as parts
from benchmarks.common import Target
from benchmarks.predictor_data import Pairs, read
from benchmarks.predictor_latency import BATCH, measure
from benchmarks.predictor_parts import GLOBAL, MIN_ROWS, MOE, TASK_MEAN, Plan
from benchmarks.predictor_scores import cut
from benchmarks.predictor_steps import Steps
from benchmarks.predictor_tables import tables
from vllm_goodput.errors import ConfigError, GoodputError
from vllm_goodput.predictor.training import TrainSettings

PAIRS = Path(__file__).parents[2] / "shared" / "data" / "agentic"
# Of the tables where there is no terminal.
WIDTH = 120
SKIPPABLE = ("global", "online", "curve", "unseen", "latency")

LIGHT = TrainSettings(
    folds=2, rounds=60, learning_rate=0.25, expert_rounds=40, expert_learning_rate=0.12
)
FULL = Plan(
    share=1.0,
    folds=parts.FOLDS,
    settings=TrainSettings(),
    light=LIGHT,
    light_share=1 / 3,
    left_out=100,
    curve=(0.125, 0.25, 0.5),
    rounds=50,
)
QUICK = Plan(
    share=0.2,
    folds=1,
    settings=replace(LIGHT, rounds=40),
    light=replace(LIGHT, rounds=25, expert_rounds=20),
    light_share=0.75,
    left_out=1,
    curve=(0.25,),
    rounds=10,
)

Row = Mapping[str, Any]


def run(
    pairs: Pairs, plan: Plan, seed: int, skip: Collection[str], console: Console
) -> list[dict[str, Any]]:
    """All parts' rows of results."""
    pairs = pairs.share(plan.share, seed).shuffled(seed)
    plan = replace(
        plan, settings=replace(plan.settings, seed=seed), light=replace(plan.light, seed=seed)
    )
    new = [] if "unseen" in skip else parts.left_out(pairs, plan.left_out)
    shares = () if "curve" in skip else plan.curve
    per_fold = 3 - len({"global", "online"} & set(skip))
    total = plan.folds * per_fold + len(shares) + len(new) + ("latency" not in skip)
    with Steps(console, total) as steps:
        found = parts.held_out(pairs, plan, seed, skip, steps)
        results = [*found.rows()]
        if "latency" not in skip:
            steps.begin("latency")
            measured = measure(found.model, plan.rounds, seed)
            results += [{"part": "latency", **row} for row in measured]
        if shares:
            results += [parts.curve(pairs, share, plan, seed, steps) for share in shares]
            train, test = parts.split(pairs, 0, seed)
            results.append(parts.curve_point(1.0, len(train), test, found.model))
        results += [parts.unseen(pairs, kind, name, plan, seed, steps) for kind, name in new]
    return [*results, parts.bound(found)]


def judge(results: Iterable[Row]) -> list[Target]:
    """What the mixture is to reach; the caller's task type is taken as declared."""
    held = {(r["task"], r["method"]): r for r in results if r["part"] == "held out"}
    moe = held[None, MOE]
    other = held.get((None, GLOBAL))
    errors = {
        task: abs(row["coverage_q90"] - 0.9)
        for (task, method), row in held.items()
        if method == MOE and row["rows"] >= MIN_ROWS
    }
    task_errors = [error for task, error in errors.items() if task is not None]
    worst = {
        kind: max((r["online_vs_histogram"] for r in rows), default=None)
        for kind in ("task", "model")
        for rows in [[r for r in results if r["part"] == "unseen" and r["kind"] == kind]]
    }
    p50 = {
        r["call"]: r["p50_us"]
        for r in results
        if r["part"] == "latency" and r["bodies"] == "ordinary"
    }
    return [
        Target("r2_log_len", moe["r2_log_len"], ">=", 0.83),
        Target(
            "mae_cut_vs_task_mean",
            cut(moe["mae_tokens"], held[None, TASK_MEAN]["mae_tokens"]),
            ">=",
            0.42,
        ),
        Target(
            "pinball_q90_cut_vs_global",
            cut(moe["pinball_q90"], other["pinball_q90"]) if other else None,
            ">=",
            0.10,
        ),
        Target("q90_coverage_error", abs(moe["coverage_q90"] - 0.9), "<=", 0.02),
        Target("q90_coverage_error_per_task", max(task_errors, default=None), "<=", 0.05),
        Target("single_p50_us", p50.get("single"), "<=", 200.0),
        Target("batch64_us", p50.get(f"batch of {BATCH}"), "<=", 20.0),
        Target("unseen_task_vs_histogram", worst["task"], "<=", 1.0),
        Target("unseen_model_vs_histogram", worst["model"], "<=", 1.0),
    ]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="a file or folder of pairs")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write the tables here too")
    parser.add_argument("--seed", type=int, default=0, help="of folds, order and training")
    parser.add_argument(
        "--skip", nargs="+", choices=SKIPPABLE, default=[], help="parts to leave out"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison, print it and write the result."""
    args = parse_args(argv)
    console = Console(stderr=True, highlight=False)
    plan = QUICK if args.quick else FULL
    try:
        console.print(f"reading {args.pairs}", markup=False)
        pairs = read(args.pairs)
        results = run(pairs, plan, args.seed, args.skip, console)
        finish(args, plan, pairs, results)
    except GoodputError as error:
        console.print(f"[red]error:[/] {error}")
        return error.exit_code
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0


def finish(
    args: argparse.Namespace, plan: Plan, pairs: Pairs, results: Sequence[dict[str, Any]]
) -> None:
    """Print the tables; write JSON and HTML."""
    console = Console(highlight=False, stderr=args.json == "-", record=args.html is not None)
    if not console.is_terminal:
        console.width = WIDTH
    targets = judge(results)
    if args.quick:
        console.print(
            f"[yellow]quick:[/] one fold of {plan.share:.0%} of the groups, light training, few left out;"
            " the figures are not those of the full run"
        )
    for table in tables(results, targets):
        console.print(table)
    settings = {
        "quick": args.quick,
        "seed": args.seed,
        "skip": args.skip,
        "rows": len(pairs),
        "source": pairs.examples.source,
        "plan": asdict(plan),
    }
    common.write(common.report("predictor", settings, results, targets), args.json)
    if args.html is not None:
        try:
            console.save_html(str(args.html))
        except OSError as error:
            raise ConfigError(f"cannot write {args.html}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
