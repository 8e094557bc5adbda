# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The summary, on values computed by hand."""

from __future__ import annotations

import json

import pytest

from vllm_goodput.bench import Record, build_result, summarise
from vllm_goodput.bench.measure import finite
from vllm_goodput.slo import SLO

SLO_ALL = SLO(ttft_ms=200, tpot_ms=50, e2el_ms=1000)


def record(index=0, **fields):
    values = {
        "index": index,
        "arrival_s": float(index),
        "prompt_len": 10,
        "output_len": 5,
        "slo": SLO_ALL,
        "finished_s": index + 0.5,
        "status": 200,
        "completed": True,
        "ttft_s": 0.1,
        "tpot_s": 0.02,
        "e2el_s": 0.5,
        "output_tokens": 5,
    }
    return Record(**(values | fields))


FAILED = {"completed": False, "ttft_s": None, "tpot_s": None, "e2el_s": None, "output_tokens": 0}


def test_hand_computed_run():
    records = [
        record(0, task="a", instance="i0", itl_s=[0.1, 0.3], predicted_e2el_ms=600.0),
        record(1, task="a", instance="i1", ttft_s=0.3, e2el_s=0.9, predicted_e2el_ms=800.0),
        record(2, task="b", instance="i0", tpot_s=0.06, e2el_s=1.5, finished_s=10.0, migrations=2),
        record(3, task="b", **FAILED, status=422, reject_reason="infeasible"),
        record(4, **FAILED, status=None, error="timeout", late_s=0.2),
    ]
    got = summarise(records, trace_duration_s=4.0)
    assert got["offered"] == 5
    assert (got["completed"], got["failed"], got["met"]) == (3, 1, 1)
    assert got["rejected"] == {"infeasible": 1}
    assert got["missed_by"] == {"ttft": 1, "tpot": 1, "e2el": 1}
    assert got["slo_attainment"] == pytest.approx(1 / 5)
    assert got["request_goodput"] == pytest.approx(1 / 4)
    assert got["duration"] == 10.0
    assert got["request_throughput"] == pytest.approx(0.3)
    assert (got["total_input_tokens"], got["total_output_tokens"]) == (30, 15)
    assert got["output_throughput"] == pytest.approx(1.5)
    assert got["total_token_throughput"] == pytest.approx(4.5)
    assert got["offered_rate"] == pytest.approx(1.25)
    assert got["migrations"] == 2
    assert got["mean_ttft_ms"] == pytest.approx(500 / 3)
    assert got["median_e2el_ms"] == pytest.approx(900)
    assert got["p90_e2el_ms"] == pytest.approx(1380)  # 900 + 0.8 * 600
    assert got["std_itl_ms"] == pytest.approx(100)
    assert got["max_client_late_ms"] == pytest.approx(200)
    assert got["prediction"]["mean_error_ms"] == pytest.approx(0)
    assert got["prediction"]["mean_abs_error_ms"] == pytest.approx(100)
    assert got["prediction"]["mape"] == pytest.approx((100 / 500 + 100 / 900) / 2)
    assert got["prediction"]["under_fraction"] == pytest.approx(0.5)


def test_groups():
    records = [
        record(0, task="a", instance="i0"),
        record(1, task="a", instance="i1", e2el_s=2.0),
        record(2, **FAILED, reject_reason="saturated", status=429),
    ]
    got = summarise(records, 2.0)
    assert list(got["per_task"]) == ["(none)", "a"]
    a = got["per_task"]["a"]
    assert (a["offered"], a["met"], a["slo_attainment"]) == (2, 1, 0.5)
    assert a["request_goodput"] == pytest.approx(0.5)
    assert a["median_e2el_ms"] == pytest.approx(1250)
    assert a["total_output_tokens"] == 10
    assert got["per_task"]["(none)"]["rejected"] == 1
    assert list(got["per_instance"]) == ["i0", "i1"]
    assert got["per_instance"]["i1"]["met"] == 0


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, "met"),
        ({"slo": SLO()}, "met"),
        ({"slo": SLO(), "e2el_s": 1e6}, "met"),
        ({"e2el_s": 1.0}, "met"),
        ({"e2el_s": 1.0001}, "missed"),
        ({"tpot_s": None}, "met"),
        ({"ttft_s": None}, "missed"),  # no better than its E2EL
        (FAILED | {"slo": SLO()}, "failed"),
        (FAILED | {"reject_reason": "expired"}, "rejected"),
        ({"completed": False, "error": "cut off"}, "failed"),
    ],
)
def test_outcome(fields, outcome):
    assert record(**fields).outcome == outcome


@pytest.mark.parametrize("records", [[], [record(**FAILED, finished_s=None)]])
def test_nothing_completed_gives_none_not_nan(records):
    got = summarise(records, 0.0)
    json.dumps(got, allow_nan=False)
    assert got["p99_ttft_ms"] is None
    assert got["mean_itl_ms"] is None
    assert got["request_throughput"] is None
    assert got["request_goodput"] is None
    assert got["prediction"] == {}


def test_values_that_json_cannot_express_become_none():
    values = {"a": [float("nan"), float("inf"), 1.5, 2], "b": {"c": float("-inf"), "d": "x"}}
    assert finite(values) == {"a": [None, None, 1.5, 2], "b": {"c": None, "d": "x"}}


def test_a_trace_without_duration_uses_the_run():
    assert summarise([record(finished_s=2.0)], 0.0)["request_goodput"] == pytest.approx(0.5)


def test_row_of_a_record_is_compact():
    row = record(3, task="a", itl_s=[0.1], migrations=0).as_row()
    assert row["ttft_ms"] == 100.0
    assert row["slo"] == {"ttft_ms": 200, "tpot_ms": 50, "e2el_ms": 1000}
    assert not {"itl_s", "migrations", "error", "session"} & row.keys()
    failed = record(**FAILED, slo=SLO()).as_row()
    assert failed["output_tokens"] == 0
    assert "slo" not in failed


@pytest.mark.parametrize(
    ("records", "options", "warning"),
    [
        ([record(late_s=0.2)], {}, "requests late"),
        ([record(slo=SLO())], {}, "no request has an SLO"),
        ([record()], {"streamed": False}, "TPOT is not measured"),
        ([record(output_tokens=4)], {"exact_lengths": True}, "1 answers are shorter"),
        ([record()], {"interrupted": True}, "interrupted after 1 requests"),
    ],
)
def test_warnings(records, options, warning):
    (got,) = build_result(records, 1.0, **options)["warnings"]
    assert warning in got


def test_result_carries_metadata_and_plain_json():
    result = build_result([record()], 1.0, settings={"url": "u"}, notes=["n", "n"])
    json.dumps(result, allow_nan=False)
    assert result["warnings"] == []
    assert result["notes"] == ["n"]
    assert result["machine"]["cpus"] >= 1
    assert result["date"].endswith("+00:00")
    assert [row["outcome"] for row in result["requests"]] == ["met"]
