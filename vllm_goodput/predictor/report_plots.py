# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Plotly figures of the length predictor's report, as plain dicts; see vllm_goodput.bench.plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vllm_goodput.bench.html import escape
from vllm_goodput.bench.plots import Figure, curve, new_figure
from vllm_goodput.predictor.evaluation import Predictions, Rows
from vllm_goodput.predictor.trees import Trees

MAX_POINTS = 5000  # what browsers draw well without WebGL
MIN_TASK_POINTS = 50
TOP_FEATURES = 25
FEATURES_HEIGHT_PX = 700
ALL = "all tasks"
GENERAL_EXPERT = "general expert"
_PERFECT = "#8a94a0"


def scatter(predictions: Predictions, seed: int = 0) -> Figure:
    """Predicted median against true length, a sample of each task; one task at a time can be chosen."""
    random = np.random.default_rng(seed)
    median, tasks = predictions.median, predictions.tasks()
    most = max(MIN_TASK_POINTS, MAX_POINTS // max(1, len(tasks)))
    data: list[Figure] = []
    for name, rows in tasks.items():
        shown = rows if len(rows) <= most else np.sort(random.choice(rows, most, replace=False))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(name),
                "x": predictions.output_len[shown].tolist(),
                "y": median[shown].round(1).tolist(),
                "marker": {"size": 4, "opacity": 0.5},
            }
        )
    ends = [1.0, float(max(predictions.output_len.max(), median.max()))]
    data.append(curve("equal", ends, ends, color=_PERFECT, dash="dash"))
    options = {ALL: [True] * len(data)}
    for number, name in enumerate(tasks):
        options[name] = [i in (number, len(tasks)) for i in range(len(data))]
    figure = new_figure(
        "Predicted median and true length",
        data,
        "true output length (tokens)",
        "predicted (tokens)",
        legend={},
        updatemenus=[_menu({name: {"visible": shown} for name, shown in options.items()})],
    )
    figure["layout"]["xaxis"] |= {"type": "log"}
    figure["layout"]["yaxis"] = {"title": {"text": "predicted (tokens)"}, "type": "log"}
    return figure


def calibration(predictions: Predictions) -> Figure:
    """Stated quantile level against the fraction of lengths that did not exceed the quantile."""
    levels = predictions.levels.tolist()
    all_rows = np.arange(len(predictions.output_len))
    lines: dict[str, Rows] = {ALL: all_rows, **predictions.tasks()}
    data = [
        curve(name, levels, [round(c, 4) for c in predictions.coverage(rows)])
        | {"mode": "lines+markers"}
        for name, rows in lines.items()
    ]
    data[0]["line"] = {"width": 4, "color": "#1d2733"}
    data.append(curve("as stated", [0.0, 1.0], [0.0, 1.0], color=_PERFECT, dash="dash"))
    return new_figure("Calibration", data, "stated level", "observed coverage", legend={})


def feature_use(experts: Mapping[str, Sequence[tuple[str, float]]]) -> Figure:
    """Bars of the most used features of the expert chosen; the first one to begin with.

    Args:
        experts: per expert, features and their share, the most used first.
    """
    bars: dict[str, dict[str, Any]] = {
        name: {
            "x": [round(share, 5) for _, share in used],
            "y": [escape(feature) for feature, _ in used],
        }
        for name, used in experts.items()
    }
    first: dict[str, Any] = next(iter(bars.values()))
    data: list[Figure] = [{"type": "bar", "orientation": "h", **first}]
    figure = new_figure(
        "Most used features",
        data,
        "share of decisions",
        "",
        height=FEATURES_HEIGHT_PX,
        showlegend=False,
        # A restyled trace takes one array out of a list with one per trace.
        updatemenus=[
            _menu(
                {
                    name: {axis: [values] for axis, values in bar.items()}
                    for name, bar in bars.items()
                }
            )
        ],
    )
    figure["layout"]["yaxis"] = {"autorange": "reversed", "automargin": True, "type": "category"}
    return figure


def most_used(trees: Trees, names: Sequence[str]) -> list[tuple[str, float]]:
    """The features that decide most in a forest, with their share.

    A split counts half as much as the one above it, since about half as many requests come to it.
    """
    share = np.zeros(len(names))
    nodes, weight = trees.roots, 1.0
    while len(nodes := nodes[trees.feature[nodes] >= 0]):
        share += weight * np.bincount(trees.feature[nodes], minlength=len(names))
        nodes, weight = np.concatenate([trees.left[nodes], trees.left[nodes] + 1]), weight / 2
    share /= max(1.0, share.sum())
    order = np.argsort(-share, kind="stable")[:TOP_FEATURES]
    return [(names[i], float(share[i])) for i in order if share[i] > 0]


def _menu(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A drop-down; choosing an option changes the figure's traces so."""
    buttons = [
        {"label": escape(name), "method": "restyle", "args": [dict(change)]}
        for name, change in options.items()
    ]
    return {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
