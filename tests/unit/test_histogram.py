# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The running histogram of output lengths."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput.predictor import TaskHistogram
from vllm_goodput.router import RequestInfo

BUCKET = 2 ** (1 / 8)  # a prediction is the upper edge of its bucket


def request(task=None, max_tokens=None):
    return RequestInfo("r", prompt_len=10, arrival_s=0, task=task, max_tokens=max_tokens)


def trained(lengths, task="t"):
    predictor = TaskHistogram()
    for length in lengths:
        predictor.observe(request(task), length)
    return predictor


def test_before_anything_finished_it_says_the_initial_length():
    assert TaskHistogram(initial_len=100).predict(request()).quantile(0.5) == pytest.approx(
        100, rel=0.1
    )


def test_quantiles_follow_the_task():
    rng = random.Random(0)
    predictor = TaskHistogram()
    for _ in range(400):
        predictor.observe(request("short"), rng.randint(10, 20))
        predictor.observe(request("long"), rng.randint(900, 1100))
    assert 10 <= predictor.predict(request("short")).quantile(0.7) <= 20 * BUCKET
    assert 900 <= predictor.predict(request("long")).quantile(0.3) <= 1100 * BUCKET


def test_an_unknown_task_gets_the_mixture_of_all():
    predictor = trained([10] * 50 + [1000] * 50)
    distribution = predictor.predict(request("new"))
    assert distribution.quantile(0.1) < 20 < 900 < distribution.quantile(0.9)


def test_it_forgets_old_lengths():
    predictor = trained([1000] * 500 + [10] * 700)
    assert predictor.predict(request("t")).quantile(0.5) == pytest.approx(10, rel=0.1)


def test_max_tokens_caps_unless_told_otherwise():
    predictor = trained([1000] * 50)
    assert predictor.predict(request("t", max_tokens=30)).quantile(0.9) == 30
    blind = TaskHistogram(use_max_tokens=False)
    blind.observe(request("t"), 1000)
    assert blind.predict(request("t", max_tokens=30)).quantile(0.9) > 500


def test_remaining_length_is_that_of_longer_requests_only():
    predictor = trained([10] * 90 + [1000] * 10)
    distribution = predictor.predict(request("t"))
    assert distribution.remaining(0, 0.5) == pytest.approx(10, rel=0.1)
    assert distribution.remaining(50, 0.5) == pytest.approx(950, rel=0.1)
    assert distribution.remaining(2**22, 0.5) == pytest.approx(2**21)


@given(st.lists(st.integers(1, 2**22), min_size=1, max_size=50), st.floats(0, 1e7))
def test_cdf_and_quantile_agree(lengths, length):
    distribution = trained(lengths).predict(request("t"))
    assert 0 <= distribution.cdf(length) <= 1
    assert distribution.cdf(length) <= distribution.cdf(length * 1.5) + 1e-9
    for q in (0.1, 0.5, 0.9):
        assert distribution.cdf(distribution.quantile(q)) >= q - 1e-9


def test_cdf_respects_the_cap():
    distribution = trained([1000] * 50).predict(request("t", max_tokens=30))
    assert distribution.cdf(29) < 0.1
    assert distribution.cdf(30) == 1.0


@given(st.lists(st.integers(1, 2**22), min_size=1, max_size=50), st.floats(0, 3e6))
def test_quantiles_are_monotone_and_at_least_one(lengths, generated):
    distribution = trained(lengths).predict(request("t"))
    values = [distribution.quantile(q / 20) for q in range(1, 20)]
    left = [distribution.remaining(generated, q / 20) for q in range(1, 20)]
    assert values == sorted(values)
    assert left == sorted(left)
    assert min(values + left) >= 1


def test_the_number_of_tasks_is_bounded():
    predictor = TaskHistogram(max_tasks=3)
    for i in range(100):
        predictor.observe(request(f"task{i}"), 10)
    assert len(predictor._tasks) == 3
