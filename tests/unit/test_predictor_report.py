# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The length predictor's report: its figures are right, bounded, and safe to look at."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from vllm_goodput.predictor import report, report_plots
from vllm_goodput.predictor.evaluation import MAX_TASKS, NO_TASK, OTHERS, Predictions, significant
from vllm_goodput.predictor.trees import Trees

LEVELS = np.array([0.1, 0.5, 0.9])
EVIL = "</script><script>alert(1)</script>"


def predictions(lengths, tasks, medians, spread=1.0):
    logs = np.log(np.asarray(medians, dtype=float))[:, None]
    return Predictions(
        np.asarray(lengths, dtype=float),
        np.asarray(tasks),
        logs + spread * np.array([-1.0, 0.0, 1.0]),
        LEVELS,
    )


def trees(*features):
    """One tree that splits on these features, each below the last one's right side, and what else Trees needs."""
    splits = len(features)
    feature = np.full(2 * splits + 1, -1, dtype=np.int16)
    left = np.zeros(2 * splits + 1, dtype=np.int32)
    at = 0
    for number, name in enumerate(features):
        feature[at], left[at] = name, 2 * number + 1
        at = 2 * number + 2
    return Trees(
        feature,
        np.zeros(len(feature), dtype=np.float32),
        left,
        np.zeros(len(feature), dtype=bool),
        np.zeros(1, dtype=np.int32),
        np.zeros((splits + 1, 3), dtype=np.float16),
        np.zeros(3, dtype=np.float32),
        100,
    )


def model(tasks, card=None):
    return SimpleNamespace(
        levels=LEVELS,
        models=["m"],
        heads=SimpleNamespace(names=["length"]),
        gate=SimpleNamespace(tasks=list(tasks), declared=np.full(len(tasks), 0.5)),
        card=card or {"date": "2026-01-02T00:00:00Z"},
    )


def test_figures_of_merit_by_hand():
    found = predictions([10, 20, 30, 100], ["a", "a", "a", ""], [10, 10, 30, 50])
    scores = found.per_task()
    assert list(scores) == ["a", NO_TASK]
    a = scores["a"]
    assert a.rows == 3
    assert a.mae_tokens == pytest.approx(10 / 3)
    assert a.baseline_mae_tokens == pytest.approx((10 + 0 + 10) / 3)
    logs = np.log([10, 20, 30])
    residual = np.log([1, 2, 1])
    expected = 1 - np.sum(residual**2) / np.sum((logs - logs.mean()) ** 2)
    assert a.r2_log == pytest.approx(expected)
    # Errors of (q10, q50, q90) are (1, 0, -1), (1 + ln 2, ln 2, ln 2 - 1), (1, 0, -1).
    low, mid, high = 0.1 * (3 + math.log(2)), 0.5 * math.log(2), 0.1 * (3 - math.log(2))
    assert a.pinball_log == pytest.approx((low + mid + high) / 9)
    assert a.coverage_q50 == pytest.approx(2 / 3)
    assert a.coverage_q90 == 1.0
    assert scores[NO_TASK].r2_log is None
    overall = found.overall()
    assert overall.rows == 4
    assert overall.mae_tokens == pytest.approx((10 + 50) / 4)
    assert overall.baseline_mae_tokens == pytest.approx(20 / 4)


def test_perfect_and_calibrated_predictions():
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, 500, 300)
    perfect = predictions(lengths, ["t"] * 300, lengths, spread=0.0).overall()
    assert (perfect.r2_log, perfect.mae_tokens, perfect.pinball_log) == pytest.approx((1, 0, 0))
    noise = rng.laplace(size=20_000)
    width = -math.log(0.2)  # of a Laplace distribution, from the median to its 0.9-quantile
    calibrated = predictions(100 * np.exp(noise), ["t"] * 20_000, [100] * 20_000, spread=width)
    assert calibrated.coverage(np.arange(20_000)) == pytest.approx(LEVELS.tolist(), abs=0.02)


def test_many_tasks_are_judged_together():
    names = [f"t{i}" for i in range(MAX_TASKS + 7) for _ in range(MAX_TASKS + 8 - i)]
    groups = predictions([5] * len(names), names, [5] * len(names)).tasks()
    assert len(groups) == MAX_TASKS + 1
    assert next(iter(groups)) == "t0"
    assert list(groups)[-1] == OTHERS
    assert sorted(np.concatenate(list(groups.values()))) == list(range(len(names)))
    assert set(np.array(names)[groups[OTHERS]]) == {f"t{MAX_TASKS + i}" for i in range(7)}


def test_significant_digits():
    assert [significant(x) for x in (0.123456, 1234.5678, 12, None)] == [0.1235, 1235.0, 12, None]


def test_scatter_is_bounded_and_every_task_is_in_it():
    tasks = ["big"] * 20_000 + ["small"] * 3 + [""]
    n = len(tasks)
    found = predictions(np.arange(1, n + 1), tasks, np.arange(1, n + 1))
    figure = report_plots.scatter(found)
    points = {trace["name"]: len(trace["x"]) for trace in figure["data"]}
    assert points["small"] == 3
    assert points["big"] <= report_plots.MAX_POINTS // 3
    assert figure == report_plots.scatter(found)
    for trace in figure["data"]:
        assert trace["y"] == pytest.approx(trace["x"], rel=0.02, abs=0.1)
    buttons = figure["layout"]["updatemenus"][0]["buttons"]
    assert [button["label"] for button in buttons] == ["all tasks", "big", "small", NO_TASK]
    for number, button in enumerate(buttons):
        visible = button["args"][0]["visible"]
        assert len(visible) == 4
        assert sum(visible) == (4 if number == 0 else 2)


def test_calibration_lines():
    found = predictions([10, 20, 40, 80], ["a", "a", "b", "b"], [20, 20, 20, 20])
    lines = {
        trace["name"]: (trace["x"], trace["y"]) for trace in report_plots.calibration(found)["data"]
    }
    assert lines["all tasks"] == ([0.1, 0.5, 0.9], [0.0, 0.5, 0.75])
    assert lines["a"][1] == [0.0, 1.0, 1.0]
    assert lines["b"][1] == [0.0, 0.0, 0.5]


def test_a_split_counts_half_as_much_as_the_one_above():
    names = [f"f{i}" for i in range(100)]
    used = report_plots.most_used(trees(7, 3, 7), names)
    assert used == [("f7", pytest.approx(1.25 / 1.75)), ("f3", pytest.approx(0.5 / 1.75))]
    many = report_plots.most_used(trees(*range(60)), names)
    assert [name for name, _ in many] == names[: report_plots.TOP_FEATURES]
    assert report_plots.most_used(trees(), names) == []


def test_plotly_accepts_every_figure():
    graph = pytest.importorskip("plotly.graph_objects")
    found = predictions([10, 20, 30], ["a", "b", EVIL], [12, 19, 30])
    used = {"general expert": [("x", 0.5), ("<y>", 0.2)], EVIL: []}
    for figure in (
        report_plots.scatter(found),
        report_plots.calibration(found),
        report_plots.feature_use(used),
    ):
        graph.Figure(figure)
        assert "<" not in str(figure)


def test_page_names_every_task_and_shows_the_card():
    found = predictions([10, 20, 30, 40], ["alpha", "beta", "", EVIL], [12, 19, 30, 40])
    card = {"date": "2026-01-02", "data": {"rows": 4, "models": {"m": 4}}, "notes": ["n1", "n2"]}
    page = report.render(
        found, model(["alpha", EVIL], card), [trees(75, 76), trees(1), trees(0, 0)]
    )
    for name in ("alpha", "beta", "(no task)", "general expert", "2026-01-02", "m: 4", "n1, n2"):
        assert name in page
    assert "alert(1)</script>" not in page
    assert "data rows" in page
    assert page == report.render(
        found, model(["alpha", EVIL], card), [trees(75, 76), trees(1), trees(0, 0)]
    )


def test_page_without_plotly(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    found = predictions([10, 20], ["alpha", "beta"], [12, 19])
    page = report.render(found, model([]), [trees(0)])
    assert "plotly is not installed" in page
    assert "<script>" not in page
    assert "alpha" in page


def test_card_rows_leave_out_metrics():
    card = {"date": "d", "metrics": {"overall": {}}, "data": {"tasks": {"": 3, "a": 1}, "rows": 4}}
    assert report.card_rows(card) == [
        ("date", "d"),
        ("data tasks", "(none): 3, a: 1"),
        ("data rows", "4"),
    ]
