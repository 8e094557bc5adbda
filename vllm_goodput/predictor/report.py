# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The length predictor's evaluation: one self-contained HTML page, or rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm_goodput.bench import html
from vllm_goodput.bench.html import number, percent
from vllm_goodput.predictor import report_plots
from vllm_goodput.predictor.evaluation import Predictions, Scores, significant
from vllm_goodput.predictor.model import MoEModel, row_names

if TYPE_CHECKING:
    from vllm_goodput.predictor.trees import Trees

COLUMNS = ("rows", "R² log", "MAE", "MAE of means", "pinball", "in q50", "in q90")
CAPTION = (
    "R² log: explained variance of the log length; MAE: mean absolute error of the predicted median, tokens; MAE of"
    " means: that of predicting each task's mean length; pinball: mean loss of the log length over all levels;"
    " in q50, in q90: share of lengths that do not exceed the predicted quantile."
)
DECISIONS = (
    "Most used features: share of a forest's splits, each counted half as much as the one above it."
)
HELD_OUT = (
    "Each row was predicted by experts trained without it and without rows whose session begins with the same prompt,"
    " its task taken as declared. Weights and offsets of the experts were chosen on these predictions, so coverage is"
    " a little better here than it will be for other requests."
)


def score_rows(predictions: Predictions) -> list[list[str]]:
    """Formatted COLUMNS of all tasks together, then of each, with its name in front."""
    scores = {report_plots.ALL: predictions.overall(), **predictions.per_task()}
    return [[name, *_cells(score)] for name, score in scores.items()]


def render(predictions: Predictions, model: MoEModel, trees: Sequence[Trees]) -> str:
    """The report as an HTML page; without plotly it has the tables only.

    Args:
        predictions: held-out ones.
        model: what is reported on, with its card.
        trees: of its experts, in their order.
    """
    figures = {
        "calibration": report_plots.calibration(predictions),
        "scatter": report_plots.scatter(predictions),
        "features": report_plots.feature_use(_used(model, trees)),
    }
    has_plotly = html.plotly_js() is not None
    heights = {"features": report_plots.FEATURES_HEIGHT_PX, "scatter": 560}
    drawn = "".join(html.figure_slot(name, heights.get(name)) for name in figures)
    if not has_plotly:
        drawn = f"<p>{html.escape(html.NO_PLOTS)}</p>\n"
    overall = predictions.overall()
    headline = (
        f"R² {number(overall.r2_log, 3)} of the log length, mean absolute error {number(overall.mae_tokens, 1)} tokens"
        f" ({number(overall.baseline_mae_tokens, 1)} by task means) on {overall.rows} held-out requests"
    )
    body = (
        f'<p class="big">{html.escape(headline)}</p>\n<p>{html.escape(HELD_OUT)}</p>\n'
        + html.section(
            "By task",
            html.table(["task", *COLUMNS], score_rows(predictions))
            + f"<p>{html.escape(CAPTION)}</p>\n",
        )
        + html.section("Plots", drawn + f"<p>{html.escape(DECISIONS)}</p>\n" * has_plotly)
        + html.section("Experts", html.table(["expert", "weight"], _experts(model)))
        + html.section("About this model", html.table(["", ""], card_rows(model.card)))
    )
    return html.page("Length predictor", body, figures if has_plotly else {})


def card_rows(card: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A model's card as (name, value) rows; its metrics have a table of their own."""
    rows: list[tuple[str, str]] = []
    for key, value in card.items():
        if key == "metrics" and not prefix:
            continue
        if isinstance(value, Mapping) and not prefix:
            rows += card_rows(value, f"{key} ")
        else:
            rows.append((prefix + key.replace("_", " "), _text(value)))
    return rows


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name or '(none)'}: {part}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(part) for part in value)
    return str(value)


def _cells(score: Scores) -> list[str]:
    return [
        str(score.rows),
        number(score.r2_log, 3),
        number(score.mae_tokens, 1),
        number(score.baseline_mae_tokens, 1),
        number(score.pinball_log, 4),
        percent(score.coverage_q50),
        percent(score.coverage_q90),
    ]


def _experts(model: MoEModel) -> list[tuple[str, str]]:
    """What a declared task gets of its own expert; the general one has the rest."""
    shares = zip(model.gate.tasks, model.gate.declared, strict=True)
    return [(task, f"{significant(float(share))} if declared") for task, share in shares] + [
        (report_plots.GENERAL_EXPERT, "the rest")
    ]


def _used(model: MoEModel, trees: Sequence[Trees]) -> dict[str, list[tuple[str, float]]]:
    """Most used features per expert, the general one first."""
    names = row_names(model.heads.names, model.models)
    stacked = [*names, *(f"general expert's q{level:g}" for level in model.levels)]
    *experts, general = trees
    used = {report_plots.GENERAL_EXPERT: report_plots.most_used(general, names)}
    for task, forest in zip(model.gate.tasks, experts, strict=True):
        used[task] = report_plots.most_used(forest, stacked)
    return used
