# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Lines of the decision log: what is in them and what must not be."""

from __future__ import annotations

import json
import math

import pytest

from vllm_goodput.config import PoolConfig
from vllm_goodput.errors import RejectedError
from vllm_goodput.gateway.decision_log import Asked, DecisionLog, make_decision_log
from vllm_goodput.predictor.distribution import QuantileDistribution
from vllm_goodput.router import Dispatch, Prediction, RequestInfo
from vllm_goodput.slo import SLO

LENGTHS = QuantileDistribution((0.1, 0.5, 0.9), [math.log(n) for n in (10, 100, 400)])
PREDICTION = Prediction(0.25, 0.5, 1.25, 0.0125, 100.0, hit_tokens=640)
DISPATCH = Dispatch("a", PREDICTION, LENGTHS)


def asked(**more) -> Asked:
    info = RequestInfo(
        "internal",
        700,
        10.0,
        SLO(e2el_ms=4000),
        task="sql",
        session="alice@home",
        model="m",
        **more,
    )
    return Asked("r1", info, LENGTHS, candidates=3)


@pytest.fixture
def lines(caplog):
    return lambda: [
        json.loads(r.message) for r in caplog.records if r.name == "vllm_goodput.decisions"
    ]


def test_a_dispatch_has_all_the_parts_of_its_prediction(lines):
    one = asked()
    one.held_since_s = 10.5
    DecisionLog(True, b"salt", lambda: 1234.5678).dispatched(one, DISPATCH, 11.0)
    (line,) = lines()
    session = line.pop("session")
    assert line == {
        "time_s": 1234.568,
        "request_id": "r1",
        "task": "sql",
        "model": "m",
        "prompt_len": 700,
        "slo": {"e2el_ms": 4000},
        "tried": 0,
        "output_q50": 100,
        "output_q90": 400,
        "held_ms": 500,
        "candidates": 3,
        "decision": "dispatch",
        "instance": "a",
        "queue_ms": 250,
        "prefill_ms": 500,
        "decode_ms": 1250,
        "tpot_ms": 12.5,
        "hit_tokens": 640,
        "margin_ms": 1000,  # due at 14.0, predicted for 13.0
        "measured": True,
    }
    assert "alice" not in session


def test_without_a_deadline_there_is_no_margin(lines):
    one = asked()
    one.info = RequestInfo("internal", 7, 10.0)
    DecisionLog(True, b"salt").dispatched(one, DISPATCH, 11.0)
    assert lines()[0]["margin_ms"] is None


def test_rejections_only(lines):
    log = DecisionLog(False, b"salt")
    log.dispatched(asked(), DISPATCH, 11.0)
    log.rejected(asked(excluded=frozenset("ab")), RejectedError("infeasible", "too slow"), 11.0)
    (line,) = lines()
    assert (line["decision"], line["reason"], line["message"]) == (
        "reject",
        "infeasible",
        "too slow",
    )
    assert (line["tried"], line["held_ms"]) == (2, 0)


def test_a_request_that_was_not_read_can_be_rejected(lines):
    DecisionLog(False, b"salt").rejected(Asked(), RejectedError("expired", "late"), 11.0)
    (line,) = lines()
    assert (line["reason"], line["request_id"], line["candidates"]) == ("expired", None, 0)


def test_sessions_are_told_apart_within_a_run_and_not_across_runs(lines):
    for salt in (b"one", b"one", b"two"):
        DecisionLog(True, salt).dispatched(asked(), DISPATCH, 11.0)
    first, again, other = (line["session"] for line in lines())
    assert first == again != other


def test_a_long_model_name_is_cut(lines):
    one = asked()
    one.info = RequestInfo("internal", 7, 10.0, model="m" * 10_000)
    DecisionLog(True, b"salt").dispatched(one, DISPATCH, 11.0)
    assert len(lines()[0]["model"]) <= 128


def test_off_is_no_log_at_all():
    pool = {"instances": [{"name": "a", "url": "http://x"}]}
    assert make_decision_log(PoolConfig.model_validate(pool)) is None
    assert make_decision_log(PoolConfig.model_validate({**pool, "log_decisions": "all"}))
