# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Tables, targets and plots of pool_sim."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import Target

OURS = "goodput"
# Cells whose best baseline attains less do not count as gains.
MIN_ATTAINMENT = 0.10
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Score:
    """Attainment of one policy over the seeds."""

    mean: float
    spread: float
    by_seed: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Ours against the best baseline in one cell."""

    workload: str
    level: float
    ours: Score
    best: Score
    best_policy: str
    bound: float | None

    @property
    def gain(self) -> float:
        """Relative gain over the best baseline."""
        return self.ours.mean / self.best.mean - 1.0

    @property
    def counts(self) -> bool:
        """Whether the best baseline attains enough for the gain to mean something."""
        return self.best.mean >= MIN_ATTAINMENT

    @property
    def won(self) -> bool:
        """Whether ours is best, or less than the seeds' error behind."""
        diffs = [a - b for a, b in zip(self.ours.by_seed, self.best.by_seed, strict=True)]
        error = statistics.stdev(diffs) / len(diffs) ** 0.5 if len(diffs) > 1 else 0.0
        return statistics.mean(diffs) >= -error


def scores(rows: Iterable[Row], *by: str) -> dict[tuple[Any, ...], Score]:
    """Attainment by these fields, over the seeds."""
    found: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for row in rows:
        found[tuple(row[name] for name in by)][row["seed"]] = row["attainment"]
    made = {}
    for key, seeds in found.items():
        values = tuple(seeds[seed] for seed in sorted(seeds))
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        made[key] = Score(statistics.mean(values), spread, values)
    return made


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Ours against the best baseline, for every workload and level."""
    found = scores(rows, "workload", "level", "policy")
    cells = sorted({key[:2] for key in found})
    made = []
    for workload, level in cells:
        others = {
            policy: score
            for (*cell, policy), score in found.items()
            if cell == [workload, level] and policy not in (OURS, "bound")
        }
        if (workload, level, OURS) not in found or not others:
            continue
        best = max(others, key=lambda policy: others[policy].mean)
        bound = found.get((workload, level, "bound"))
        made.append(
            Comparison(
                workload,
                level,
                found[workload, level, OURS],
                others[best],
                best,
                bound.mean if bound else None,
            )
        )
    return made


def targets(comparisons: Sequence[Comparison]) -> list[Target]:
    """The figures to reach."""
    gains = [c.gain for c in comparisons if c.counts]
    ratios = [c.ours.mean / c.bound for c in comparisons if c.bound]
    won = [c.won for c in comparisons]
    return [
        Target("levels_won", sum(won) / len(won) if won else None, ">=", 1.0),
        Target("gain_best", max(gains, default=None), ">=", 0.31),
        Target("gain_mean", statistics.mean(gains) if gains else None, ">=", 0.10),
        Target("bound_ratio_mean", statistics.mean(ratios) if ratios else None, ">=", 0.85),
    ]


def print_comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    """Ours, the best baseline and the bound."""
    table = Table(title="attainment at 1.0x capacity, learned lengths (mean ± spread over seeds)")
    for name in ("workload", "SLO level", OURS, "best baseline", "", "gain", "bound"):
        table.add_column(name)
    for c in comparisons:
        table.add_row(
            c.workload,
            f"{c.level:g}",
            f"{c.ours.mean:.3f} ± {c.ours.spread:.3f}",
            f"{c.best.mean:.3f} ± {c.best.spread:.3f}",
            c.best_policy,
            f"{c.gain:+.1%}"
            + ("" if c.counts else " (does not count)")
            + ("" if c.won else " lost"),
            "" if c.bound is None else f"{c.bound:.3f}",
        )
    console.print(table)


def print_part(title: str, rows: Sequence[Row], by: Sequence[str], console: Console) -> None:
    """Attainment by some fields, levels side by side."""
    if not rows:
        return
    found = scores(rows, *by, "level")
    levels = sorted({key[-1] for key in found})
    table = Table(title=title)
    for name in by:
        table.add_column(name)
    for level in levels:
        table.add_column(f"{level:g}", justify="right")
    for key in dict.fromkeys(key[:-1] for key in found):
        cells = (found.get((*key, level)) for level in levels)
        table.add_row(*map(str, key), *(f"{s.mean:.3f}" if s else "" for s in cells))
    console.print(table)


def write_html(path: Path, rows: Sequence[Row], title: str) -> None:
    """One plot per workload: attainment over SLO levels, a line per policy, and the bound."""
    import plotly.graph_objects as go
    from plotly.io import to_html

    parts = [f"<h1>{title}</h1>"]
    found = scores(rows, "workload", "policy", "level")
    levels = sorted({key[2] for key in found})
    for workload in dict.fromkeys(key[0] for key in found):
        figure = go.Figure()
        for policy in dict.fromkeys(key[1] for key in found if key[0] == workload):
            line = [found.get((workload, policy, level)) for level in levels]
            figure.add_trace(
                go.Scatter(
                    x=levels,
                    y=[s.mean if s else None for s in line],
                    error_y={"array": [s.spread if s else 0.0 for s in line]},
                    name=policy,
                    line={
                        "width": 4 if policy == OURS else 1,
                        "dash": "dot" if policy == "bound" else "solid",
                    },
                )
            )
        figure.update_layout(
            title=workload, xaxis_title="SLO level", yaxis_title="SLO attainment", xaxis_type="log"
        )
        parts.append(to_html(figure, full_html=False, include_plotlyjs=not parts[1:]))
    path.write_text("<!doctype html><meta charset=utf-8>" + "\n".join(parts), encoding="utf-8")
