# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Plotly figures as plain dicts, from the per-request rows of a result.

Plotly reads a subset of HTML in labels, so every name is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vllm_goodput.bench.html import escape

Figure = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
COLOURS = {"met": "#2a9d5c", "missed": "#e08a00", "rejected": "#7a5cc8", "failed": "#c8372d"}
MAX_CURVE_POINTS = 400
BINS = 60
NO_INSTANCE = "(no instance)"


def over_time(rows: Rows) -> Figure:
    """Goodput (requests per second) and attainment by time of arrival."""
    arrivals = np.array([row["arrival_s"] for row in rows])
    met = np.array([row["outcome"] == "met" for row in rows])
    bins = max(1, min(BINS, len(rows) // 5))
    edges = np.linspace(0, max(float(arrivals.max()), 1e-3), bins + 1)
    offered, _ = np.histogram(arrivals, edges)
    good, _ = np.histogram(arrivals[met], edges)
    width_s = float(edges[1] - edges[0])
    x = ((edges[:-1] + edges[1:]) / 2).round(3).tolist()
    attainment = [
        g / o if o else None for g, o in zip(good.tolist(), offered.tolist(), strict=True)
    ]
    data = [
        curve("offered", x, (offered / width_s).tolist(), color="#b8c2cc"),
        curve("goodput", x, (good / width_s).tolist(), color=COLOURS["met"]),
        curve("attainment", x, attainment, color="#2b6cb0", dash="dot") | {"yaxis": "y2"},
    ]
    right = {
        "title": {"text": "attainment"},
        "overlaying": "y",
        "side": "right",
        "range": [0, 1.02],
    }
    return new_figure(
        "Goodput and attainment over time", data, "arrival (s)", "req/s", yaxis2=right
    )


def latency_cdf(rows: Rows, metric: str) -> Figure | None:
    """CDF of one latency over the completed requests, with the SLO's line where all share one."""
    key = f"{metric}_ms"
    values = [row[key] for row in rows if row["outcome"] in ("met", "missed") and key in row]
    if not values:
        return None
    x, y = _cdf(values, len(values))
    figure = new_figure(
        f"{metric.upper()}",
        [curve(metric, x, y)],
        f"{metric.upper()} (ms)",
        "fraction of completed",
    )
    slos = {row["slo"].get(key) if "slo" in row else None for row in rows}
    if len(slos) == 1 and (slo := slos.pop()) is not None:
        figure["layout"]["shapes"] = [_vertical(slo)]
    return figure


def ratio_cdf(groups: Mapping[str, Rows]) -> Figure | None:
    """CDF of max over metrics of latency / SLO, one curve per group.

    The fraction is of all offered requests with an SLO: a curve's height at 1 is its attainment, and rejected and
    failed requests keep it below 1.
    """
    data = []
    for name, rows in groups.items():
        with_slo = [row for row in rows if row.get("slo")]
        if with_slo:
            ratios = [r for row in with_slo if (r := _slo_ratio(row)) is not None]
            data.append(curve(name, *_cdf(ratios, len(with_slo))))
    if not data:
        return None
    figure = new_figure(
        "Latency / SLO", data, "latency / SLO (worst metric)", "fraction of offered"
    )
    figure["layout"]["shapes"] = [_vertical(1.0)]
    figure["layout"]["xaxis"]["range"] = [0, 3]
    return figure


def requests_by_instance(rows: Rows) -> Figure:
    """Every request as a dot: time of arrival against the instance that had it, coloured by outcome."""
    names = sorted({row.get("instance") or NO_INSTANCE for row in rows})
    place = {name: i for i, name in enumerate(names)}
    kind = "scattergl" if len(rows) > 5000 else "scatter"
    data = []
    for outcome, colour in COLOURS.items():
        chosen = [row for row in rows if row["outcome"] == outcome]
        if not chosen:
            continue
        # Spread by index within an instance's lane, so that simultaneous requests stay apart.
        y = [
            place[r.get("instance") or NO_INSTANCE] + (r["index"] * 7 % 11 - 5) / 15 for r in chosen
        ]
        data.append(
            {
                "type": kind,
                "mode": "markers",
                "name": outcome,
                "x": [row["arrival_s"] for row in chosen],
                "y": y,
                "text": [_hover(row) for row in chosen],
                "hoverinfo": "text",
                "marker": {"color": colour, "size": 6, "opacity": 0.75},
            }
        )
    figure = new_figure("Requests by instance", data, "arrival (s)", "")
    labels = [escape(name) for name in names]
    figure["layout"]["yaxis"] |= {"tickvals": list(range(len(names))), "ticktext": labels}
    return figure


def outcome_bars(groups: Mapping[str, Mapping[str, Any]], title: str) -> Figure | None:
    """Stacked counts of outcomes per task or instance."""
    if not groups:
        return None
    names = [escape(name) for name in groups]
    counts = {
        "met": [g["met"] for g in groups.values()],
        "missed": [g["completed"] - g["met"] for g in groups.values()],
        "rejected": [g["rejected"] for g in groups.values()],
        "failed": [g["failed"] for g in groups.values()],
    }
    data = [_bar(name, names, values, COLOURS[name]) for name, values in counts.items()]
    return new_figure(title, data, "", "requests", barmode="stack")


def grouped_bars(values: Mapping[str, Mapping[str, float | None]], title: str, unit: str) -> Figure:
    """Bars by category, one colour per series: `values[series][category]`."""
    data = [
        _bar(escape(series), [escape(c) for c in categories], list(categories.values()), None)
        for series, categories in values.items()
    ]
    return new_figure(title, data, "", unit, barmode="group")


def _slo_ratio(row: Mapping[str, Any]) -> float | None:
    if row["outcome"] not in ("met", "missed"):
        return None
    measured = {"ttft_ms": row.get("e2el_ms", 0.0), "tpot_ms": 0.0} | dict(row)
    return max(float(measured[name]) / float(slo) for name, slo in row["slo"].items())


def _cdf(values: Sequence[float], total: int) -> tuple[list[float], list[float]]:
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if ordered.size == 0:
        return [0.0], [0.0]
    picks = np.unique(np.linspace(0, ordered.size - 1, MAX_CURVE_POINTS).astype(int))
    return ordered[picks].round(4).tolist(), ((picks + 1) / total).round(5).tolist()


def _hover(row: Mapping[str, Any]) -> str:
    parts = [f"request {row['index']}", row["outcome"], row.get("task"), row.get("instance")]
    if "e2el_ms" in row:
        parts.append(f"E2EL {row['e2el_ms']:.0f} ms")
    parts += [row.get("reject_reason"), row.get("error")]
    return "<br>".join(escape(part) for part in parts if part)


def curve(
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    color: str | None = None,
    dash: str = "solid",
) -> Figure:
    """A line through points."""
    line = {"dash": dash, "width": 2} | ({"color": color} if color else {})
    return {"type": "scatter", "mode": "lines", "name": escape(name), "x": x, "y": y, "line": line}


def _bar(name: str, x: Sequence[str], y: Sequence[Any], colour: str | None) -> Figure:
    bar: Figure = {"type": "bar", "name": name, "x": x, "y": y}
    return bar | ({"marker": {"color": colour}} if colour else {})


def _vertical(x: float) -> Figure:
    line = {"color": "#c8372d", "dash": "dash", "width": 1.5}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def new_figure(title: str, data: list[Figure], x: str, y: str, **layout: Any) -> Figure:
    """A figure with titled axes; `layout` goes over what reports have in common."""
    return {
        "data": data,
        "layout": {
            "title": {"text": escape(title)},
            "xaxis": {"title": {"text": x}, "type": "category" if not x else "linear"},
            "yaxis": {"title": {"text": y}, "rangemode": "tozero"},
            "margin": {"l": 60, "r": 60, "t": 50, "b": 50},
            "legend": {"orientation": "h", "y": 1.12, "x": 1, "xanchor": "right"},
            **layout,
        },
    }
