# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What `benchmarks.pool_live` makes of its cells: figures per level, targets, tables, and HTML pages with plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from benchmarks.common import Target
from benchmarks.pool_live_cells import Cell, Result
from vllm_goodput.bench import compare, html, plots
from vllm_goodput.bench.html import milliseconds, number, percent
from vllm_goodput.bench.report import terminal_table
from vllm_goodput.bench.result import without_requests

OURS = "goodput"
Results = Mapping[Cell, Result]
HEADER = (
    *("goodput", "of repeats", "ours / it", "attained", "missed", "rej.", "fail.", "p50", "p99"),
    *("cached", "overruns"),
)
CAPTION = (
    "goodput in req/s, mean over the repeats, then each; ours / it: our mean over this one; missed, rejected, "
    "failed: requests of all repeats; p50, p99: E2EL of completed requests in ms, mean over the repeats; cached: "
    "share of prompt tokens found in prefix caches; overruns: steps slower than the emulated device, worst engine and "
    "repeat (limit 5 %)"
)


@dataclass(frozen=True)
class Level:
    """The routers at one SLO level.

    Args:
        level: SLO level.
        goodput: of every repeat, by router.
    """

    level: float
    goodput: Mapping[str, Sequence[float]]

    def mean(self, router: str) -> float:
        """Over the repeats."""
        return fmean(self.goodput[router])

    @property
    def best_peer(self) -> str | None:
        """The peer with the highest mean."""
        peers = [name for name in self.goodput if name != OURS]
        return max(peers, key=self.mean) if peers else None

    @property
    def gain(self) -> float | None:
        """Ours over the best peer's, minus 1; None where either is missing or the peer has none."""
        if OURS not in self.goodput or self.best_peer is None:
            return None
        best = self.mean(self.best_peer)
        return self.mean(OURS) / best - 1 if best else None

    @property
    def tied(self) -> bool | None:
        """Whether the best peer is ahead by less than the repeats spread: their ranges overlap."""
        if self.gain is None or self.best_peer is None:
            return None
        return self.gain < 0 and max(self.goodput[OURS]) >= min(self.goodput[self.best_peer])

    @property
    def won(self) -> bool | None:
        """Whether ours is best; ties count."""
        return None if self.gain is None else self.gain >= 0 or bool(self.tied)


def levels(results: Results) -> list[Level]:
    """The results by level."""
    found = []
    for level in sorted({cell.level for cell in results}):
        goodput: dict[str, list[float]] = {}
        for cell, result in results.items():
            if cell.level == level:
                goodput.setdefault(cell.router, []).append(result["request_goodput"] or 0.0)
        found.append(Level(level, goodput))
    return found


def judge(found: Sequence[Level]) -> list[Target]:
    """The benchmark's targets, over the levels at which ours and a peer were measured."""
    gains = [level.gain for level in found if level.gain is not None]
    won = [level.won for level in found if level.won is not None]
    return [
        Target("levels_won", fmean(won) if won else None, ">=", 1.0),
        Target("gain_best", max(gains, default=None), ">=", 0.20),
    ]


def as_rows(results: Results) -> list[dict[str, Any]]:
    """Every cell without its requests, and every level; for JSON."""
    rows: list[dict[str, Any]] = [{"part": "cell", **without_requests(r)} for r in results.values()]
    for level in levels(results):
        row = {name: getattr(level, name) for name in ("level", "best_peer", "gain", "won", "tied")}
        rows.append({"part": "level", **row, "goodput": dict(level.goodput)})
    return rows


def rows_of(level: Level, results: Results) -> list[list[str]]:
    """The table of one level."""
    return [
        [name, *_figures_of(level, [r for c, r in _of(results, level.level) if c.router == name])]
        for name in level.goodput
    ]


def print_levels(results: Results, missing: Mapping[str, str], console: Console) -> None:
    """The tables in the terminal."""
    for level in levels(results):
        console.print(f"\n[bold]SLO level {level.level:g}[/]: {verdict(level)}")
        rows = [[row[0], *row[1:8]] for row in rows_of(level, results)]  # narrow enough
        console.print(terminal_table("router", HEADER[:7], rows))
    for name, reason in missing.items():
        console.print(f"{name}: not measured: {reason}", markup=False)


def verdict(level: Level) -> str:
    """One line on a level."""
    if level.gain is None or level.best_peer is None:
        return "no comparison"
    tie = " (a tie within the spread of the repeats)" if level.tied else ""
    return f"ours {level.gain:+.1%} against the best peer, {level.best_peer}{tie}"


def write_pages(
    folder: Path,
    results: Results,
    missing: Mapping[str, str],
    about: Mapping[str, object],
    commands: Mapping[str, str],
) -> Path:
    """Write `comparison.html` and one detailed page per level; returns the former's path.

    Raises:
        ConfigError: a file cannot be written.
    """
    found = levels(results)
    warnings = [f"{cell.key}: {w}" for cell, r in results.items() for w in r["warnings"]]
    warnings += [f"{name}: not measured: {reason}" for name, reason in missing.items()]
    body = html.messages(["engines are real, device speeds are emulated"], "note")
    body += html.messages(warnings, "warning")
    has_plots = html.plotly_js() is not None
    figures = _plots(found, results) if has_plots else {}
    slots = "".join(html.figure_slot(name) for name in figures)
    body += html.section("Plots", slots or f"<p>{html.escape(html.NO_PLOTS)}</p>")
    for level in found:
        page = f"level-{level.level:g}.html"
        _write_level(folder / page, level, results)
        content = f"<p>{html.escape(verdict(level))}; <a href='{page}'>by task and request</a></p>"
        content += html.table(["router", *HEADER], rows_of(level, results))
        body += html.section(f"SLO level {level.level:g}", content)
    body += f"<p>{html.escape(CAPTION)}</p>"
    body += html.section("Requests by engine", html.table(*_shares(results)))
    body += html.section("Routers", html.table(["", ""], list(commands.items())))
    body += html.section("About this run", html.table(["", ""], list(about.items())))
    path = folder / "comparison.html"
    html.write_page(
        html.page("Goodput over real engines: ours and peer routers", body, figures), path
    )
    return path


def _plots(found: Sequence[Level], results: Results) -> dict[str, plots.Figure]:
    names = list(dict.fromkeys(name for level in found for name in level.goodput))
    attained = {
        name: {
            f"SLO level {level.level:g}": fmean(
                r["slo_attainment"] for c, r in _of(results, level.level) if c.router == name
            )
            for level in found
            if name in level.goodput
        }
        for name in names
    }
    goodput = {
        name: {f"SLO level {v.level:g}": v.mean(name) for v in found if name in v.goodput}
        for name in names
    }
    return {
        "goodput": plots.grouped_bars(goodput, "Goodput", "req/s"),
        "attainment": plots.grouped_bars(attained, "SLO attainment", "fraction of offered"),
    }


def _figures_of(level: Level, results: Sequence[Result]) -> list[str]:
    values = [result["request_goodput"] or 0.0 for result in results]
    mean = fmean(values)
    ours = level.mean(OURS) if OURS in level.goodput else None
    engines = [engine for result in results for engine in result["engines"].values()]
    prompt_tokens = sum(engine["prompt_tokens"] for engine in engines)
    cached = sum(engine["cached_tokens"] for engine in engines)
    return [
        number(mean, 2),
        " ".join(number(value, 2) for value in values),
        "-" if ours is None or not mean else f"{ours / mean:.2f}x",
        percent(fmean(result["slo_attainment"] or 0.0 for result in results)),
        str(sum(result["completed"] - result["met"] for result in results)),
        str(sum(sum(result["rejected"].values()) for result in results)),
        str(sum(result["failed"] for result in results)),
        *(milliseconds(_mean_of(results, f"p{p}_e2el_ms")) for p in (50, 99)),
        percent(cached / prompt_tokens if prompt_tokens else None),
        percent(max((engine["overrun_fraction"] for engine in engines), default=None)),
    ]


def _mean_of(results: Sequence[Result], name: str) -> float | None:
    values = [result[name] for result in results if result[name] is not None]
    return fmean(values) if values else None


def _of(results: Results, level: float) -> list[tuple[Cell, Result]]:
    return [(cell, result) for cell, result in results.items() if cell.level == level]


def _write_level(path: Path, level: Level, results: Results) -> None:
    named = {
        f"{cell.router} #{cell.repeat + 1}": result for cell, result in _of(results, level.level)
    }
    best = level.best_peer
    baseline = next((name for name in named if best and name.startswith(f"{best} #")), None)
    compare(named, baseline).write_html(path)


def _shares(results: Results) -> tuple[list[str], list[list[str]]]:
    """How many requests each engine finished, by router; header and rows."""
    engines = list(dict.fromkeys(name for r in results.values() for name in r["engines"]))
    counts: dict[str, dict[str, float]] = {}
    for cell, result in results.items():
        row = counts.setdefault(cell.router, dict.fromkeys(engines, 0.0))
        for name, engine in result["engines"].items():
            row[name] += engine["finished"]
    rows = []
    for router, row in counts.items():
        total = sum(row.values()) or 1.0
        rows.append([router, *(f"{count:.0f} ({count / total:.0%})" for count in row.values())])
    return ["router", *engines], rows
