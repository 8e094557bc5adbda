# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Reports and comparisons: what they show, that nothing in them is live HTML, and that they need no plotly."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
from rich.console import Console

from vllm_goodput.bench import (
    Record,
    build_result,
    compare,
    plots,
    print_result,
    read_json,
    summarise,
    write_html,
)
from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import SLO

EVIL = "</script><script>alert(1)</script>"


def records(e2el_s=0.5, **fields):
    common = {"prompt_len": 4, "output_len": 2, "slo": SLO(e2el_ms=1000)}
    done = [
        Record(
            **(
                common
                | {
                    "index": i,
                    "arrival_s": i / 10,
                    "finished_s": i / 10 + e2el_s,
                    "completed": True,
                    "status": 200,
                    "ttft_s": 0.1,
                    "tpot_s": 0.01,
                    "e2el_s": e2el_s * (1 + i / 10),
                    "output_tokens": 2,
                    "task": "ab"[i % 2],
                    "instance": f"i{i % 3}",
                }
                | fields
            )
        )
        for i in range(20)
    ]
    rejected = {"index": 20, "arrival_s": 2.0, "status": 422, "reject_reason": "infeasible"}
    return [*done, Record(**(common | rejected))]


def result(e2el_s=0.5, notes=(), **fields):
    trace = {"name": "t.jsonl", "sha256": "0" * 64, "rows": 21}
    return build_result(
        records(e2el_s, **fields), 2.0, trace=trace, notes=notes, settings={"url": "http://h"}
    )


def html_of(report, tmp_path):
    path = tmp_path / "report.html"
    write_html(report, path) if isinstance(report, dict) else report.write_html(path)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def without_plotly(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)


def terminal_text(show):
    console = Console(file=io.StringIO(), width=200)
    show(console)
    return console.file.getvalue()


def test_terminal_shows_notes_goodput_and_groups():
    report = result(notes=["emulated devices: [bold]H100[/bold]"])
    text = terminal_text(lambda console: print_result(report, console))
    assert "emulated devices: [bold]H100[/bold]" in text
    assert f"goodput {report['request_goodput']:.3f} req/s" in text
    assert "infeasible: 1" in text
    assert all(name in text for name in ("i0", "i1", "i2", "TTFT", "E2EL"))


def test_html_is_self_contained_with_plots(tmp_path):
    pytest.importorskip("plotly")
    page = html_of(result(notes=["emulated devices: H100"]), tmp_path)
    assert page.count('class="plot"') == 8
    assert page.count("Plotly.newPlot(id") == 1
    assert 'class="note">emulated devices: H100' in page
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)


def test_html_without_plotly_has_tables_and_says_how_to_get_plots(tmp_path, without_plotly):
    page = html_of(result(), tmp_path)
    assert "<script" not in page
    assert "pip install &#x27;vllm-goodput[report]&#x27;" in page
    assert page.count("<table>") == 5


def test_reports_of_a_bare_summary(tmp_path):
    summary = summarise(records(), 2.0)
    assert "By instance" in html_of(summary, tmp_path)
    assert "By task" not in html_of(compare({"a": summary}), tmp_path)
    assert "goodput" in terminal_text(lambda console: print_result(summary, console))


@pytest.mark.parametrize("field", ["task", "instance", "error"])
def test_everything_is_escaped(tmp_path, field, request):
    failing = {"completed": False} if field == "error" else {}
    report = result(notes=[EVIL], **{field: EVIL}, **failing)
    report["trace"]["name"] = EVIL
    report["settings"]["model"] = EVIL
    assert "<script>alert" not in html_of(report, tmp_path)
    assert "<script>alert" not in html_of(compare({EVIL: report}), tmp_path)
    request.getfixturevalue("without_plotly")
    assert "<script" not in html_of(report, tmp_path)


def test_unwritable_html(tmp_path):
    with pytest.raises(ConfigError, match="cannot write"):
        write_html(result(), tmp_path / "no" / "report.html")


def test_figures_are_valid_for_plotly():
    objects = pytest.importorskip("plotly.graph_objects")
    rows, groups = result()["requests"], result()["per_task"]
    for figure in (
        plots.over_time(rows),
        plots.latency_cdf(rows, "e2el"),
        plots.ratio_cdf({"a": rows, "b": rows[:1]}),
        plots.requests_by_instance(rows),
        plots.outcome_bars(groups, "t"),
        plots.grouped_bars({"a": {"x": 1.0, "y": None}}, "t", "req/s"),
    ):
        objects.Figure(figure)


def test_names_survive_a_narrow_terminal():
    report = result(e2el_s=12.0, task="customer_service")
    console = Console(file=io.StringIO(), width=80)
    print_result(report, console)
    compare({"weighted_least_request": report, "goodput": report}).print(console)
    text = console.file.getvalue()
    assert text.count("customer_service") == 2
    assert "weighted_least_request" in text
    assert "…" not in text


def test_ratio_curve_at_one_is_the_attainment():
    report = result()
    (curve,) = plots.ratio_cdf({"r": report["requests"]})["data"]
    at_one = max(y for x, y in zip(curve["x"], curve["y"], strict=True) if x <= 1)
    assert at_one == pytest.approx(report["slo_attainment"], abs=1e-4)


def test_slo_line_only_where_all_requests_share_it():
    rows = result()["requests"]
    assert plots.latency_cdf(rows, "e2el")["layout"]["shapes"][0]["x0"] == 1000
    rows[0]["slo"] = {"e2el_ms": 5.0}
    assert "shapes" not in plots.latency_cdf(rows, "e2el")["layout"]


def test_compare_ratios_tables_and_page(tmp_path):
    good, bad = result(), result(0.9)
    comparison = compare({"rr": bad, "goodput": good})
    assert comparison.baseline == "rr"
    assert comparison.ratio("goodput") == pytest.approx(good["met"] / bad["met"])
    assert comparison.warnings == []
    text = terminal_text(comparison.print)
    assert f"{good['met'] / bad['met']:.2f}x" in text
    page = html_of(comparison, tmp_path)
    assert "Goodput by task" in page
    json.dumps(comparison.as_dict(), allow_nan=False)


def test_compare_without_any_goodput_has_no_ratio():
    none = result(5.0)
    comparison = compare({"a": none, "b": result()})
    assert none["met"] == 0
    assert comparison.ratio("b") is None


def test_compare_notes_and_warnings():
    a, b = result(notes=["shared", "only a"]), result(notes=["shared"])
    b["trace"]["sha256"] = "other"
    b["offered"] = 7
    comparison = compare({"a": a, "b": b})
    assert comparison.notes == ["shared", "a: only a"]
    assert "different traces" in comparison.warnings[0]
    assert "different numbers of requests" in comparison.warnings[1]


def test_compare_errors():
    with pytest.raises(ConfigError, match="no results"):
        compare({})
    with pytest.raises(ConfigError, match="expected one of a, got 'z'"):
        compare({"a": result()}, "z")


def test_read_json_errors(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(ConfigError, match="cannot read"):
        read_json(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_json(path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not a result"):
        read_json(path)
