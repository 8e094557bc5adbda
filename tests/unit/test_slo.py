# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""SLO syntax and per-request intake."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput.errors import BadRequestError, ConfigError, RejectedError
from vllm_goodput.slo import MAX_SLO_MS, SLO, parse_slo_args, request_slo

NOW_S = 1_800_000_000.0


def take(headers=(), body=None, default=None):
    return request_slo(headers, body or {}, default or SLO(), NOW_S)


def test_vllm_syntax():
    assert parse_slo_args(["ttft:200", "tpot:50", "e2el:20000"]) == SLO(200, 50, 20000)


@pytest.mark.parametrize(
    ("pairs", "part"),
    [
        (["ttft"], "METRIC:MILLISECONDS"),
        (["itl:5"], "METRIC:MILLISECONDS"),
        (["ttft:0"], "greater than 0"),
        (["ttft:-5"], "greater than 0"),
        (["ttft:nan"], "greater than 0"),
        (["ttft:1e400"], "greater than 0"),
        (["ttft:5", "ttft:6"], "twice"),
    ],
)
def test_malformed_syntax_names_the_flag(pairs, part):
    with pytest.raises(ConfigError, match=part) as error:
        parse_slo_args(pairs)
    assert "--goodput-slo" in str(error.value)


def test_headers_win_over_body_and_body_over_default_metric_by_metric():
    body = {"vllm_xargs": {"slo_e2el_ms": 9000, "slo_tpot_ms": 70}}
    default = SLO(ttft_ms=1, tpot_ms=2, e2el_ms=3)
    got = take([("X-SLO-E2EL-MS", "5000")], body, default)
    assert got.slo == SLO(ttft_ms=1, tpot_ms=70, e2el_ms=5000)


def test_llm_d_aliases():
    got = take([("x-llm-d-slo-ttft-ms", "100"), ("x-llm-d-slo-tpot-ms", "10")])
    assert got.slo == SLO(ttft_ms=100, tpot_ms=10)


def test_task_and_session():
    got = take([("x-goodput-task", "math"), ("x-session-id", "s1")])
    assert (got.task, got.session) == ("math", "s1")
    assert take((), {"vllm_xargs": {"task": "sql"}}).task == "sql"


@pytest.mark.parametrize(
    "text", [str(NOW_S + 2), "2027-01-15T08:00:02Z", "2027-01-15T10:00:02+02:00"]
)
def test_absolute_deadlines(text):
    assert take([("x-request-deadline", text)]).slo.e2el_ms == pytest.approx(2000, abs=1)


def test_the_earlier_of_deadline_and_e2el_counts():
    deadline = ("x-request-deadline", str(NOW_S + 2))
    assert take([deadline, ("x-slo-e2el-ms", "500")]).slo.e2el_ms == 500
    assert take([deadline, ("x-slo-e2el-ms", "5000")]).slo.e2el_ms == pytest.approx(2000, abs=1)


def test_an_expired_deadline_is_rejected_whatever_else_is_said():
    with pytest.raises(RejectedError) as error:
        take([("x-request-deadline", "0.001"), ("x-slo-e2el-ms", "5000")])
    assert (error.value.reason, error.value.status) == ("expired", 422)
    assert error.value.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "value",
    ["", "0", "-1", "nan", "inf", "1e999", "abc", "1_0", " 5", "0x10", "１２", "1e9999", "2e9"],
)
@pytest.mark.parametrize(
    "header", ["x-slo-e2el-ms", "x-slo-ttft-ms", "x-slo-tpot-ms", "x-llm-d-slo-ttft-ms"]
)
def test_a_malformed_header_is_a_400_naming_it(header, value):
    with pytest.raises(BadRequestError) as error:
        take([(header, value)])
    assert error.value.status == 400
    assert header in str(error.value)
    assert error.value.param == header


@pytest.mark.parametrize("value", [True, 0, -3, math.nan, math.inf, "x", [5], {}, 10**400, 2e9])
def test_a_malformed_body_value_is_a_400_naming_it(value):
    with pytest.raises(BadRequestError) as error:
        take((), {"vllm_xargs": {"slo_e2el_ms": value}})
    assert error.value.param == "vllm_xargs.slo_e2el_ms"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "tomorrow",
        "2027-01-15T08:00:02",
        "1800000002000",
        "nan",
        "9999-12-31T23:59:59Z",
        "1e999",
    ],
)
def test_a_malformed_deadline_is_a_400(value):
    with pytest.raises(BadRequestError):
        take([("x-request-deadline", value)])


def test_contradicting_repeats_are_a_400_and_equal_ones_are_not():
    with pytest.raises(BadRequestError):
        take([("x-slo-e2el-ms", "5"), ("X-Slo-E2el-Ms", "6")])
    assert take([("x-slo-e2el-ms", "5"), ("x-slo-e2el-ms", "5")]).slo.e2el_ms == 5


@given(st.text() | st.floats() | st.integers() | st.booleans() | st.none(), st.text())
def test_nothing_gains_urgency_beyond_a_valid_value(body_value, header):
    """Whatever comes in, the result is an SLO within bounds or a definite refusal."""
    try:
        got = take(
            [("x-slo-e2el-ms", header), ("x-request-deadline", header)],
            {"vllm_xargs": {"slo_e2el_ms": body_value}},
        )
    except (BadRequestError, RejectedError):
        return
    assert got.slo.e2el_ms is not None
    assert 0 < got.slo.e2el_ms <= MAX_SLO_MS


def test_the_python_type_checks_its_values_too():
    with pytest.raises(ConfigError, match="e2el_ms"):
        SLO(e2el_ms=-1)
    with pytest.raises(ConfigError, match="ttft_ms"):
        SLO(ttft_ms=True)


def test_met_by():
    slo = SLO(ttft_ms=100, tpot_ms=10, e2el_ms=1000)
    assert slo.met_by(0.1, 0.01, 1.0)
    assert not slo.met_by(0.11, 0.01, 1.0)
    assert not slo.met_by(0.1, 0.011, 1.0)
    assert not slo.met_by(0.1, 0.01, 1.1)
    assert SLO().met_by(math.inf, math.inf, math.inf)
