# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A run's report: tables in the terminal, and a self-contained HTML page with plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vllm_goodput.bench import html, plots
from vllm_goodput.bench.html import milliseconds, number, percent
from vllm_goodput.bench.measure import PERCENTILES

Result = Mapping[str, Any]
LATENCIES = ("ttft", "tpot", "itl", "e2el")
_LATENCY_COLUMNS = ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES[1:]))
_GROUP_COLUMNS = ("offered", "met", "attained", "goodput", "rej.", "fail.", "p50", "p99", "tokens")
_GROUP_CAPTION = "goodput in req/s; p50, p99: E2EL in ms; tokens: output"


def headline(result: Result) -> str:
    """Goodput and attainment in one line."""
    return (
        f"goodput {number(result['request_goodput'], 3)} req/s, attainment {percent(result['slo_attainment'])} "
        f"({result['met']} of {result['offered']} offered requests met their SLOs)"
    )


def overview(result: Result) -> list[tuple[str, str]]:
    """The figures of the whole run, named and formatted."""
    rejected = ", ".join(f"{reason}: {n}" for reason, n in result["rejected"].items())
    missed = ", ".join(f"{metric}: {n}" for metric, n in result["missed_by"].items() if n)
    rows = [
        ("Offered requests", str(result["offered"])),
        ("Completed", str(result["completed"])),
        ("Met all SLOs", str(result["met"])),
        (
            "Rejected",
            f"{sum(result['rejected'].values())}" + (f" ({rejected})" if rejected else ""),
        ),
        ("Failed", str(result["failed"])),
        ("Missed by (may overlap)", missed or "-"),
        ("SLO attainment", percent(result["slo_attainment"])),
        ("Goodput (req/s)", number(result["request_goodput"], 3)),
        ("Offered rate (req/s)", number(result["offered_rate"], 3)),
        ("Duration of trace / run (s)", _pair(result["trace_duration_s"], result["duration"])),
        ("Request throughput (req/s)", number(result["request_throughput"], 3)),
        ("Output throughput (tok/s)", number(result["output_throughput"])),
        ("Total token throughput (tok/s)", number(result["total_token_throughput"])),
        (
            "Input / output tokens",
            f"{result['total_input_tokens']} / {result['total_output_tokens']}",
        ),
        ("Migrations", str(result["migrations"])),
        ("Client lateness p99 (ms)", number(result["p99_client_late_ms"])),
    ]
    if result["prediction"]:
        p = result["prediction"]
        error = f"{number(p['mean_error_ms'])} / {number(p['mean_abs_error_ms'])}"
        rows.append(("Predicted E2EL error, mean / mean abs (ms)", error))
    return rows


def print_result(result: Result, console: Console) -> None:
    """Print notes, warnings and tables."""
    for kind, style in (("notes", "bold yellow"), ("warnings", "red")):
        for message in result.get(kind, ()):
            console.print(Panel(Text(str(message)), title=kind[:-1], border_style=style))
    console.print(Text(headline(result), style="bold"), soft_wrap=True)
    total = Table("", "", show_header=False, box=box.SIMPLE)
    for name, value in overview(result):
        total.add_row(Text(name), Text(value, justify="right"))
    console.print(total)
    console.print(terminal_table("latency (ms)", _LATENCY_COLUMNS, _latency_rows(result)))
    for title, key in (("task", "per_task"), ("instance", "per_instance")):
        if result[key]:
            rows = [row[:-1] for row in _group_rows(result[key])]  # tokens would not fit
            console.print(terminal_table(title, _GROUP_COLUMNS[:-1], rows))
    console.print(Text(_GROUP_CAPTION.rpartition(";")[0]))


def terminal_table(first: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column holds names and the others figures; narrow enough for 80 columns if it can be."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column(first, overflow="fold", min_width=8)
    for column in columns:
        table.add_column(Text(column), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def write_html(result: Result, path: str | Path) -> None:
    """Write the report as one self-contained HTML file; without plotly it has the tables only.

    Raises:
        ConfigError: the file cannot be written.
    """
    figures = _figures(result)
    has_plotly = html.plotly_js() is not None
    drawn = "".join(html.figure_slot(name) for name in figures)
    if not has_plotly:
        drawn = f"<p>{html.escape(html.NO_PLOTS)}</p>\n"
    groups = "".join(
        html.section(
            title,
            html.table([name, *_GROUP_COLUMNS], _group_rows(result[key]))
            + f"<p>{_GROUP_CAPTION}</p>",
        )
        for title, name, key in (
            ("By task", "task", "per_task"),
            ("By instance", "instance", "per_instance"),
        )
        if result[key]
    )
    body = (
        html.messages(result.get("notes", ()), "note")
        + html.messages(result.get("warnings", ()), "warning")
        + f'<p class="big">{html.escape(headline(result))}</p>\n'
        + html.table(["run", ""], overview(result))
        + html.section("Plots", drawn)
        + html.section("Latency", html.table(["ms", *_LATENCY_COLUMNS], _latency_rows(result)))
        + groups
        + html.section("About this run", html.table(["", ""], _about(result)))
    )
    title = f"Goodput report: {result.get('trace', {}).get('name', 'trace')}"
    html.write_page(html.page(title, body, figures if has_plotly else {}), path)


def _figures(result: Result) -> dict[str, plots.Figure]:
    rows = result.get("requests") or []
    if not rows:
        return {}
    found = {
        "over_time": plots.over_time(rows),
        "ratio": plots.ratio_cdf({"latency / SLO": rows}),
        **{metric: plots.latency_cdf(rows, metric) for metric in ("e2el", "ttft", "tpot")},
        "by_instance": plots.requests_by_instance(rows),
        "tasks": plots.outcome_bars(result["per_task"], "Outcome by task"),
        "instances": plots.outcome_bars(result["per_instance"], "Outcome by instance"),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def _latency_rows(result: Result) -> list[list[str]]:
    return [
        [name.upper(), *(number(result[f"{column}_{name}_ms"]) for column in _LATENCY_COLUMNS)]
        for name in LATENCIES
    ]


def _group_rows(groups: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            name,
            str(group["offered"]),
            str(group["met"]),
            percent(group["slo_attainment"]),
            number(group["request_goodput"], 3),
            str(group["rejected"]),
            str(group["failed"]),
            milliseconds(group["p50_e2el_ms"]),
            milliseconds(group["p99_e2el_ms"]),
            str(group["total_output_tokens"]),
        ]
        for name, group in groups.items()
    ]


def _about(result: Result) -> list[tuple[str, object]]:
    parts = [("date", result.get("date", "-"))]
    for group in ("trace", "settings", "machine"):
        parts += [(f"{group} {name}", value) for name, value in result.get(group, {}).items()]
    return parts


def _pair(first: float | None, second: float | None) -> str:
    return f"{number(first)} / {number(second)}"
