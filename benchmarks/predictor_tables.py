# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The comparison of length predictors as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.common import Target
from benchmarks.predictor_parts import GENERAL, GLOBAL, HISTOGRAM, MOE, ONLINE, TASK_MEAN
from benchmarks.predictor_scores import cut

Row = Mapping[str, Any]


def tables(results: Sequence[Row], targets: Iterable[Target]) -> Iterator[Table]:
    """All that there is something to show in."""
    parts: dict[str, list[Row]] = {}
    for row in results:
        parts.setdefault(row["part"], []).append(row)
    yield _overall(parts["held out"])
    yield _r2_by_task(parts["held out"])
    yield _gains_by_task(parts["held out"])
    if "learning curve" in parts:
        yield _curve(parts["learning curve"], parts["bound"][0])
    if "unseen" in parts:
        yield _unseen(parts["unseen"])
    if "latency" in parts:
        yield _latency(parts["latency"])
    yield _targets(targets)


def _overall(rows: Iterable[Row]) -> Table:
    table = _table(
        "Held-out rows, all tasks",
        "method",
        ("R² log", "MAE tok", "pinball", "at q90", "at q90, tok", "in q50", "in q90"),
        "R² of the log length by the mean; MAE by the median (per-task mean: by the mean); pinball: mean loss of the"
        " log length over all levels; in q50, in q90: share of lengths that do not exceed the quantile",
    )
    for row in rows:
        if row["task"] is None:
            table.add_row(
                row["method"],
                f"{row['r2_log_len']:.3f}",
                f"{row['mae_tokens']:.1f}",
                f"{row['pinball']:.4f}",
                f"{row['pinball_q90']:.4f}",
                f"{row['pinball_q90_tokens']:.2f}",
                f"{row['coverage_q50']:.1%}",
                f"{row['coverage_q90']:.1%}",
            )
    return table


def _r2_by_task(rows: Sequence[Row]) -> Table:
    of = {(row["task"], row["method"]): row for row in rows}
    methods = [m for m in (HISTOGRAM, GLOBAL, GENERAL, MOE, ONLINE) if (None, m) in of]
    table = _table("R² of the log length by task", "task", ("rows", *methods), "")
    for task in _tasks(rows):
        figures = (f"{of[task, m]['r2_log_len']:.3f}" for m in methods)
        table.add_row(task, str(of[task, MOE]["rows"]), *figures)
    return table


def _gains_by_task(rows: Sequence[Row]) -> Table:
    of = {(row["task"], row["method"]): row for row in rows}
    judged = [m for m in (MOE, ONLINE) if (None, m) in of]
    others = [m for m in (HISTOGRAM, GLOBAL, GENERAL) if (None, m) in of]
    table = _table(
        "The MoE by task",
        "task",
        (
            *(f"in q90, {m}" for m in judged),
            "MAE cut",
            *(f"gain on {m}" for m in others),
        ),
        f"MAE cut: against the {TASK_MEAN}; gain: cut of the mean pinball loss over all levels",
    )
    for task in _tasks(rows):
        moe = of[task, MOE]
        table.add_row(
            task,
            *(f"{of[task, m]['coverage_q90']:.1%}" for m in judged),
            f"{cut(moe['mae_tokens'], of[task, TASK_MEAN]['mae_tokens']):.1%}",
            *(f"{cut(moe['pinball'], of[task, m]['pinball']):.1%}" for m in others),
        )
    return table


def _tasks(rows: Iterable[Row]) -> list[str]:
    return sorted({row["task"] for row in rows if row["task"] is not None})


def _curve(rows: Iterable[Row], bound: Row) -> Table:
    reached = ", ".join(f"{method} {value:.3f}" for method, value in bound["r2"].items())
    table = _table(
        "Learning curve of the MoE, first fold",
        "training groups",
        ("rows", "R² log", "pinball", "at q90"),
        f"where the same model met the same input more than once ({bound['rows']} rows), R² is at most"
        f" {bound['r2_bound']:.3f}; reached: {reached}",
    )
    for row in sorted(rows, key=lambda r: float(r["share"])):
        table.add_row(
            f"{row['share']:.1%}",
            str(row["rows"]),
            f"{row['r2_log_len']:.3f}",
            f"{row['pinball']:.4f}",
            f"{row['pinball_q90']:.4f}",
        )
    return table


def _unseen(rows: Iterable[Row]) -> Table:
    table = _table(
        "Tasks and models never trained on: mean pinball loss, running histogram = 1",
        "left out",
        ("rows", "histogram", "MoE online", "MoE frozen"),
        "histogram: its loss of the log length; it starts with the stream",
    )
    for row in rows:
        table.add_row(
            f"{row['kind']} {row['name']}",
            str(row["rows"]),
            f"{row['pinball_histogram']:.4f}",
            f"{row['online_vs_histogram']:.3f}",
            f"{row['frozen_vs_histogram']:.3f}",
        )
    return table


def _latency(rows: Iterable[Row]) -> Table:
    table = _table(
        "Time per request on one core, µs", "bodies", ("call", "least", "p50", "p90"), ""
    )
    for row in rows:
        figures = (f"{row[name]:.1f}" for name in ("least_us", "p50_us", "p90_us"))
        table.add_row(row["bodies"], row["call"], *figures)
    return table


def _targets(targets: Iterable[Target]) -> Table:
    table = _table("Targets", "figure", ("reached", "target", "met"), "")
    words = {None: "not measured", True: "[green]yes[/]", False: "[red]no[/]"}
    for target in targets:
        reached = "-" if target.value is None else f"{target.value:.4g}"
        table.add_row(target.name, reached, f"{target.op} {target.target:g}", words[target.met])
    return table


def _table(title: str, first: str, columns: Iterable[str], caption: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        caption=caption,
        caption_justify="left",
    )
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
