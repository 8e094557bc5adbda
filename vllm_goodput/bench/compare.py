# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Several results side by side: a terminal table and an HTML page, with ratios to a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from vllm_goodput.bench import html, plots
from vllm_goodput.bench.html import milliseconds, number, percent
from vllm_goodput.bench.report import terminal_table
from vllm_goodput.errors import ConfigError

Result = Mapping[str, Any]
_HEADER = ("goodput", "ratio", "attained", "met", "rej.", "fail.", "p50", "p99", "offered")
_CAPTION = "goodput in req/s, ratio to the baseline's; p50, p99: E2EL in ms"


@dataclass(frozen=True)
class Comparison:
    """Results by name, one of them the baseline of ratios."""

    results: Mapping[str, Result]
    baseline: str

    def ratio(self, name: str, task: str | None = None) -> float | None:
        """Goodput of `name` over the baseline's, of one task or of all; None where it is undefined."""
        return _ratio(
            _goodput(self.results[name], task), _goodput(self.results[self.baseline], task)
        )

    @property
    def tasks(self) -> list[str]:
        """Task types of all results."""
        return sorted({task for result in self.results.values() for task in result["per_task"]})

    @property
    def warnings(self) -> list[str]:
        """Why the results may not be comparable."""
        found = [f"{n}: {w}" for n, r in self.results.items() for w in r.get("warnings", ())]
        traces = {r.get("trace", {}).get("sha256") for r in self.results.values()}
        if len(traces) > 1:
            found.append("the results are of different traces")
        if len({r["offered"] for r in self.results.values()}) > 1:
            found.append("the results offer different numbers of requests")
        return found

    @property
    def notes(self) -> list[str]:
        """Notes of the results; one that all share is shown once."""
        notes = {n: list(r.get("notes", ())) for n, r in self.results.items()}
        first = next(iter(notes.values()))
        shared = [note for note in first if all(note in other for other in notes.values())]
        own = [f"{n}: {note}" for n, found in notes.items() for note in found if note not in shared]
        return shared + own

    def as_dict(self) -> dict[str, Any]:
        """Goodput, attainment and ratio by result and task, for JSON."""
        return {
            "baseline": self.baseline,
            "notes": self.notes,
            "warnings": self.warnings,
            "results": {
                name: {
                    "request_goodput": result["request_goodput"],
                    "slo_attainment": result["slo_attainment"],
                    "goodput_ratio": self.ratio(name),
                    "per_task": {
                        task: {
                            "request_goodput": _goodput(result, task),
                            "goodput_ratio": self.ratio(name, task),
                        }
                        for task in self.tasks
                    },
                }
                for name, result in self.results.items()
            },
        }

    def print(self, console: Console) -> None:
        """Print notes, warnings and the tables."""
        for kind, style, texts in (
            ("note", "bold yellow", self.notes),
            ("warning", "red", self.warnings),
        ):
            for text in texts:
                console.print(Panel(Text(text), title=kind, border_style=style))
        rows = [row[:-1] for row in self._rows()]  # narrow enough for a terminal
        console.print(terminal_table("result", _HEADER[:-1], rows))
        console.print(terminal_table("goodput by task", list(self.results), self._task_rows()))
        console.print(Text(_CAPTION))

    def write_html(self, path: str | Path) -> None:
        """Write one self-contained page; without plotly it has the tables only.

        Raises:
            ConfigError: the file cannot be written.
        """
        figures = self._figures() if html.plotly_js() is not None else {}
        slots = "".join(html.figure_slot(name) for name in figures)
        body = (
            html.messages(self.notes, "note")
            + html.messages(self.warnings, "warning")
            + html.table(["result", *_HEADER], self._rows())
            + f"<p>{html.escape(_CAPTION)}</p>"
            + html.section("Plots", slots or f"<p>{html.escape(html.NO_PLOTS)}</p>")
            + html.section(
                "Goodput by task", html.table(["task", *self.results], self._task_rows())
            )
        )
        html.write_page(
            html.page(f"Goodput comparison, baseline {self.baseline}", body, figures), path
        )

    def _figures(self) -> dict[str, plots.Figure]:
        tasks = self.tasks
        found = {
            "goodput": plots.grouped_bars(
                {"goodput": {n: r["request_goodput"] for n, r in self.results.items()}},
                "Goodput",
                "req/s",
            ),
            "attainment": plots.grouped_bars(
                {"attainment": {n: r["slo_attainment"] for n, r in self.results.items()}},
                "SLO attainment",
                "fraction of offered",
            ),
            "goodput_by_task": plots.grouped_bars(
                {n: {t: _goodput(r, t) for t in tasks} for n, r in self.results.items()},
                "Goodput by task",
                "req/s",
            ),
            "attainment_by_task": plots.grouped_bars(
                {n: {t: _attainment(r, t) for t in tasks} for n, r in self.results.items()},
                "SLO attainment by task",
                "fraction of offered",
            ),
            "ratio": plots.ratio_cdf({n: r.get("requests") or [] for n, r in self.results.items()}),
        }
        return {name: figure for name, figure in found.items() if figure is not None}

    def _rows(self) -> list[list[str]]:
        return [
            [
                name,
                number(result["request_goodput"], 3),
                _times(self.ratio(name)),
                percent(result["slo_attainment"]),
                str(result["met"]),
                str(sum(result["rejected"].values())),
                str(result["failed"]),
                milliseconds(result["p50_e2el_ms"]),
                milliseconds(result["p99_e2el_ms"]),
                str(result["offered"]),
            ]
            for name, result in self.results.items()
        ]

    def _task_rows(self) -> list[list[str]]:
        return [
            [
                task,
                *(
                    f"{number(_goodput(r, task), 3)} ({_times(self.ratio(n, task))})"
                    for n, r in self.results.items()
                ),
            ]
            for task in self.tasks
        ]


def compare(results: Mapping[str, Result], baseline: str | None = None) -> Comparison:
    """Compare results by name.

    Args:
        results: dicts of `build_result` (or read from its JSON).
        baseline: name of the one that ratios refer to; None for the first.

    Raises:
        ConfigError: there are no results, or none of that name.
    """
    if not results:
        raise ConfigError("compare: no results given")
    name = next(iter(results)) if baseline is None else baseline
    if name not in results:
        raise ConfigError(f"baseline: expected one of {', '.join(results)}, got {name!r}")
    return Comparison(dict(results), name)


def _goodput(result: Result, task: str | None) -> float | None:
    if task is None:
        return _number_or_none(result["request_goodput"])
    return _number_or_none(result["per_task"].get(task, {}).get("request_goodput"))


def _attainment(result: Result, task: str) -> float | None:
    return _number_or_none(result["per_task"].get(task, {}).get("slo_attainment"))


def _number_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
