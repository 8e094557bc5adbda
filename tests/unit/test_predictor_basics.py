# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Length distributions, the view of a request, and sessions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput.predictor.distribution import QuantileDistribution
from vllm_goodput.predictor.sessions import SessionLengths, Sessions
from vllm_goodput.predictor.view import (
    BREAK,
    GRAMMAR,
    JSON_OBJECT,
    JSON_SCHEMA,
    LAST_HEAD,
    LAST_TAIL,
    PLAIN,
    ROLES,
    view_of,
    window,
)

LEVELS = [0.1, 0.5, 0.9]


def uniform() -> QuantileDistribution:
    """Log length uniform on [log 10, log 1000]."""
    low, high = math.log(10), math.log(1000)
    return QuantileDistribution(LEVELS, [low + q * (high - low) for q in LEVELS])


class TestDistribution:
    def test_quantile_and_cdf_have_the_right_values(self):
        made = uniform()
        assert made.quantile(0.5) == pytest.approx(100)
        assert made.quantile(0.0) == pytest.approx(10)
        assert made.quantile(1.0) == pytest.approx(1000)
        assert made.quantile(0.25) == pytest.approx(10**1.5)
        assert made.cdf(100) == pytest.approx(0.5)
        assert made.cdf(9) == 0
        assert made.cdf(1001) == 1

    def test_remaining_is_conditional(self):
        made = uniform()
        # Given more than 100, log length is uniform on [log 100, log 1000].
        assert made.remaining(100, 0.5) == pytest.approx(10**2.5 - 100)
        assert made.remaining(0, 0.5) == pytest.approx(100)
        assert made.remaining(2000, 0.9) == pytest.approx(1000)  # half as much again

    def test_a_cap_holds_everywhere(self):
        made = QuantileDistribution(LEVELS, [2.0, 4.0, 6.0], cap=50)
        assert made.quantile(0.99) == 50
        assert made.cdf(50) == 1
        assert made.cdf(49) < 1
        assert made.remaining(30, 0.9) == pytest.approx(20)
        assert made.remaining(80, 0.5) == 1

    @given(
        st.lists(st.floats(-1, 12), min_size=3, max_size=3).map(sorted),
        st.floats(0, 1),
        st.floats(0, 1),
        st.floats(0, 1e5),
        st.sampled_from([1.0, 7.0, 300.0, math.inf]),
    )
    def test_monotone_and_bounded(self, logs, q1, q2, generated, cap):
        made = QuantileDistribution(LEVELS, logs, cap)
        low, high = sorted((q1, q2))
        assert 1 <= made.quantile(low) <= made.quantile(high) <= max(1, cap)
        assert 0 <= made.cdf(generated) <= made.cdf(generated + 1) <= 1
        assert 1 <= made.remaining(generated, low) <= made.remaining(generated, high)
        if generated + 1 < cap:
            assert generated + made.remaining(generated, high) <= max(cap, generated + 1)

    @given(
        st.lists(st.floats(1, 9), min_size=3, max_size=3, unique=True).map(sorted),
        st.floats(0.01, 0.99),
    )
    def test_cdf_inverts_quantile(self, logs, q):
        made = QuantileDistribution(LEVELS, logs)
        if made.quantile(q) > 1 and min(np.diff(logs)) > 1e-6:
            assert made.cdf(made.quantile(q)) == pytest.approx(q, abs=1e-6)


class TestView:
    def test_long_text_is_cut_in_the_middle(self):
        text = "a" * 1000 + "m" * 100_000 + "z" * 1000
        got = window(text, 5, 3)
        assert got == "aaaaa" + BREAK + "zzz"
        assert window("short", 5, 3) == "short"
        assert window(text, 5, 0) == "aaaaa"

    def test_lone_surrogates_do_not_survive(self):
        window("x\ud800", 5, 5).encode()

    def test_chat(self):
        body = {
            "model": "m",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "first question"},
                {"role": "assistant", "content": "x" * 40},
                {"role": "tool", "content": "result"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "last"}, {"type": "image_url"}],
                },
            ],
            "tools": [{}, {}],
            "stop": ["a", "b", "c"],
            "response_format": {"type": "json_object"},
        }
        view = view_of(body, True, 99, 7, 0.5)
        assert (view.model, view.prompt_len, view.max_tokens, view.chat) == ("m", 99, 7, True)
        assert (view.last, view.first, view.answer) == ("last", "be brief\nfirst question", "f {}")
        assert (view.turn, view.tools, view.tool_results, view.stops) == (2, 2, 1, 3)
        assert view.answer_lens == (20.0, 2.0)
        assert view.form == JSON_OBJECT
        assert ROLES[view.role] == "user"
        assert not view.repeats

    def test_a_single_message_is_no_instruction(self):
        view = view_of({"messages": [{"role": "user", "content": "hi"}]}, True, 1, None)
        assert (view.last, view.first, view.answer, view.turn) == ("hi", "", "", 0)

    def test_repetition(self):
        turn = {"role": "user", "content": "again"}
        view = view_of(
            {"messages": [turn, {"role": "assistant", "content": "ok"}, turn]}, True, 1, None
        )
        assert view.repeats

    @pytest.mark.parametrize(
        ("body", "form"),
        [
            ({}, PLAIN),
            ({"response_format": {"type": "text"}}, PLAIN),
            ({"response_format": {"type": "json_schema", "json_schema": {}}}, JSON_SCHEMA),
            ({"guided_json": {"type": "object"}}, JSON_SCHEMA),
            ({"structured_outputs": {"regex": "a+"}}, GRAMMAR),
            ({"response_format": 3}, PLAIN),
        ],
    )
    def test_form(self, body, form):
        assert view_of(body, False, 1, None).form == form

    @pytest.mark.parametrize(
        ("prompt", "last"),
        [
            ("text", "text"),
            ([1, 2, 3], ""),
            (["a", "b"], "a"),
            ([[1], [2]], ""),
            (None, ""),
            ({}, ""),
        ],
    )
    def test_completion_prompts(self, prompt, last):
        assert view_of({"prompt": prompt}, False, 5, None).last == last

    @pytest.mark.parametrize(
        "messages",
        [
            None,
            [],
            "x",
            [None],
            [3, "a"],
            [{}],
            [{"role": 5, "content": 7}],
            [{"content": [None, {"text": 3}]}],
            [{"role": "assistant", "tool_calls": [None, {"function": 3}]}, {"role": "user"}],
        ],
    )
    def test_malformed_messages_count_as_absent(self, messages):
        view_of({"messages": messages, "tools": 3, "stop": 5, "model": 7}, True, 1, None)

    def test_bounded(self):
        body = {"messages": [{"role": "user", "content": "é" * 10**5}] * 3}
        view = view_of(body, True, 10**5, None)
        assert len(view.last) <= LAST_HEAD + LAST_TAIL + 1
        assert view.last_chars == 10**5


class TestSessions:
    def test_running_figures(self):
        lengths = SessionLengths.of([10, 1000, 100])
        assert lengths.count == 3
        assert lengths.total / 3 == pytest.approx(math.log(100))
        assert lengths.std == pytest.approx(np.std(np.log([10, 100, 1000])))
        assert (lengths.high, lengths.low) == (math.log(1000), math.log(10))
        assert lengths.latest == [math.log(10), math.log(1000), math.log(100)]

    def test_residuals_are_bounded_and_averaged(self):
        lengths = SessionLengths()
        assert math.isnan(lengths.std)
        lengths.add(100, 50, residual=99.0)
        assert lengths.residual == 3
        lengths.add(0, 50, residual=-1.0)
        assert lengths.residual == pytest.approx(1.0)
        assert lengths.context_len == 0
        lengths.add(170, 30, residual=math.nan)
        assert lengths.residual == pytest.approx(1.0)
        assert lengths.context_len == 200

    def test_only_the_latest_are_kept_one_by_one(self):
        lengths = SessionLengths.of([1, 2, 4, 8, 16])
        assert lengths.latest == [math.log(n) for n in (2, 4, 8, 16)]
        assert lengths.low == 0

    def test_bounded_and_least_recent_goes_first(self):
        sessions = Sessions(max_sessions=2)
        sessions.add("a", 1, 5)
        sessions.add("b", 1, 5)
        sessions.add("a", 1, 5)
        sessions.add("c", 1, 5)
        assert sessions.get("b") is None
        assert sessions.get("a").count == 2
        sessions.add(None, 1, 5)
        sessions.add("", 1, 5)
        assert sessions.get(None) is None
        assert len(sessions) == 2
