# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The native pool: predictions, chances and harm against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_goodput import _C
from vllm_goodput.predictor.constant import narrow
from vllm_goodput.router.estimator import Sample, SpeedEstimator

OVERHEAD, P, D0, D1 = 0.01, 1e-4, 0.01, 0.001
INF = math.inf


def exact_speed():
    """o = 10 ms, p = 0.1 ms, d(n) = 10 ms + 1 ms x n."""
    speed = SpeedEstimator()
    for i in range(200):
        tokens, sequences = 100.0 * (1 + i % 7), 1.0 + i % 5
        speed.add(Sample(OVERHEAD + P * tokens, 1, tokens, 0, 0))
        speed.add(Sample(100 * (D0 + D1 * sequences), 0, 0, 100, 100 * sequences))
    return speed


def pool(limit=8):
    made = _C.Pool()
    slot = made.add_instance(limit)
    made.set_speed(slot, exact_speed().native)
    return made


def demand(
    prompt_len=1000.0, deadline_s=INF, generated=0.0, tpot_s=INF, ttft_s=INF, streaming=True
):
    return _C.Demand(prompt_len, generated, deadline_s, ttft_s, tpot_s, streaming)


def book(made, now_s=0.0, output_len=100.0, hit=0.0, **fields):
    asked = demand(**fields)
    made.evaluate(np.array([0]), np.array([hit]), asked, output_len, now_s)
    queue_s, prefill_s, _, tpot_s, _, _ = made.candidates.row(0)
    return made.book(0, asked, hit, queue_s + prefill_s, tpot_s, narrow(output_len), now_s)


def predict(made, now_s=0.0, output_len=101.0, **fields):
    made.evaluate(np.array([0]), None, demand(**fields), output_len, now_s)
    return made.candidates.row(0)


def test_an_idle_instance():
    queue_s, prefill_s, decode_s, tpot_s, hit, known = predict(pool())
    assert (queue_s, prefill_s) == pytest.approx((OVERHEAD, 1000 * P), rel=0.01)
    assert (decode_s, tpot_s) == pytest.approx((100 * (D0 + D1), D0 + D1), rel=0.01)
    assert (hit, known) == (0.0, True)


def test_queued_prompts_are_ahead_less_what_is_done_of_the_first():
    made = pool()
    book(made, prompt_len=2000.0)
    book(made, prompt_len=1000.0)
    assert predict(made)[0] == pytest.approx(OVERHEAD + 3000 * P, rel=0.01)
    assert predict(made, now_s=0.1)[0] == pytest.approx(OVERHEAD + 3000 * P - 0.1, rel=0.02)
    # Not more can be done of the first than there is.
    assert predict(made, now_s=9.0)[0] == pytest.approx(OVERHEAD + 1000 * P, rel=0.02)


def test_cached_tokens_are_not_prefilled():
    made = pool()
    book(made, prompt_len=2000.0, hit=1500.0)
    assert predict(made)[0] == pytest.approx(OVERHEAD + 500 * P, rel=0.01)


def test_prefills_to_come_stretch_decoding():
    """2,000 tokens every second for a long time take a fifth of it."""
    made = pool(limit=100)
    for second in range(120):
        handle = book(made, now_s=float(second), prompt_len=2000.0)
        made.first_token(handle, second + OVERHEAD + 0.2)
        made.release(handle, 0, second + 0.9)
    assert made.prefill_share(0, 120.0) == pytest.approx(0.2, rel=0.1)
    assert predict(made, now_s=120.0)[3] == pytest.approx((D0 + D1) / 0.8, rel=0.05)


def test_the_rate_of_an_instance_that_has_just_begun_is_not_diluted():
    made = pool(limit=100)
    for i in range(10):
        book(made, now_s=i * 0.5, prompt_len=1000.0)
    assert made.prefill_share(0, 4.5) == pytest.approx(0.2, rel=0.25)


def test_chances_are_those_of_the_length_that_fits():
    made = pool()
    lengths = _C.Lengths([0.0, 1.0], np.log([10.0, 1000.0]), INF)
    asked = demand(
        deadline_s=OVERHEAD + 0.1 + 99 * 0.011
    )  # room for 100 tokens, halfway in log length
    made.evaluate(np.array([0]), None, asked, 100.0, 0.0)
    made.chances(asked, lengths, 1.0, 0.0)
    assert made.candidates.chance[0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("fields", "chance"),
    [
        ({}, 1.0),
        ({"ttft_s": 0.2}, 1.0),
        ({"ttft_s": 0.1}, 0.0),
        ({"tpot_s": 0.012}, 1.0),
        ({"tpot_s": 0.010}, 0.0),
        ({"deadline_s": 0.05}, 0.0),
    ],
)
def test_each_objective_counts(fields, chance):
    made = pool()
    asked = demand(**fields)
    made.evaluate(np.array([0]), None, asked, 100.0, 0.0)
    made.chances(asked, narrow(100), 1.0, 0.0)
    assert made.candidates.chance[0] == chance


def decoding(made, deadline_s, tokens=1.0, output_len=100.0):
    """A booking past its prefill."""
    handle = book(made, output_len=output_len, deadline_s=deadline_s)
    made.first_token(handle, 0.11)
    made.progress(handle, tokens)
    return handle


def test_harm_is_the_loss_of_a_request_that_only_just_makes_it():
    # At 1 s: 50 tokens to go, 0.55 s alone, 0.6 s with another, and its prefill of 0.05 s stalls once.
    for deadline_s, harm in ((1.45, 0.0), (1.62, 1.0), (1.75, 0.0)):
        made = pool()
        made_s = 1.0
        decoding(made, deadline_s, tokens=50.0)
        # Nothing else has come of late, so no share of prefills to come is expected after a long while.
        share = made.prefill_share(0, made_s)
        scaled_s = made_s + (deadline_s - made_s) / (1.0 - share)
        other = pool()
        decoding(other, scaled_s, tokens=50.0)
        assert other.harm(0, 500.0, made_s) == pytest.approx(harm, abs=0.02)


def test_a_queue_of_prefills_stalls_what_decodes():
    """One chunk of 2,048 tokens per step: a short rest waits for as many chunks as it has steps, a long one for all."""
    made = pool(limit=100)
    handle = decoding(made, deadline_s=2.0, tokens=98.0)
    for _ in range(5):
        book(made, now_s=1.0, prompt_len=2048.0, deadline_s=INF)
    # 2 steps of 0.2 s each and 1 s of prefills in all: in time by chunks, late if all came first.
    assert made.chance_to_stay(handle, 1.0) == pytest.approx(1.0, abs=0.01)
    long = pool(limit=100)
    handle = decoding(long, deadline_s=2.0, tokens=50.0)
    for _ in range(5):
        book(long, now_s=1.0, prompt_len=2048.0, deadline_s=INF)
    assert long.chance_to_stay(handle, 1.0) == pytest.approx(0.0, abs=0.01)


def test_a_booked_tpot_objective_is_protected():
    made = pool()
    handle = book(made, tpot_s=0.0115)
    made.first_token(handle, 0.11)
    assert made.harm(0, 10.0, 500.0) == 1.0  # 11 ms alone, 12 ms with another


def test_first_tokens_of_one_step_share_its_time():
    """Two prompts of 1,000 tokens computed in one step of 0.2 s: 0.1 ms a token, not 0.2."""
    made = _C.Pool()
    made.add_instance(8)
    for i in range(60):
        start_s = float(i)
        handles = [book(made, now_s=start_s, prompt_len=1000.0) for _ in range(2)]
        for handle in handles:
            made.first_token(handle, start_s + OVERHEAD + 2000 * P)
        for handle in handles:
            made.release(handle, 0, start_s + 0.5)
        alone = book(made, now_s=start_s + 0.6, prompt_len=500.0)
        made.first_token(alone, start_s + 0.6 + OVERHEAD + 500 * P)
        made.release(alone, 0, start_s + 0.9)
    made.queued_prefill(0, 100.0)
    assert made.speed(0).prefill_token_s() == pytest.approx(P, rel=0.05)


def test_unknown_handles_and_slots_are_refused():
    made = pool()
    handle = book(made)
    made.release(handle, 0, 1.0)
    assert not made.open(handle)
    for call in (
        lambda: made.release(handle, 0, 2.0),
        lambda: made.progress(handle, 3),
        lambda: made.booking(-1),
        lambda: made.in_flight(7),
        lambda: made.evaluate(np.array([3]), None, demand(), 10.0, 0.0),
    ):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(ValueError, match="hits"):
        made.evaluate(np.array([0]), np.zeros(0), demand(), 10.0, 0.0)


def test_handles_are_never_given_twice():
    made = pool()
    seen = set()
    for i in range(50):
        handle = book(made, now_s=float(i))
        assert handle not in seen
        seen.add(handle)
        made.release(handle, 0, i + 0.5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("bfprx"), st.integers(0, 9), st.floats(0, 2)), max_size=80)
)
def test_whatever_happens_counts_stay_right(operations):
    made, open_handles, now_s = pool(limit=3), [], 0.0
    for kind, pick, gap in operations:
        now_s += gap
        if kind == "b" or not open_handles:
            open_handles.append(
                book(made, now_s=now_s, prompt_len=100.0 * (1 + pick), streaming=pick % 2 == 0)
            )
            continue
        handle = open_handles[pick % len(open_handles)]
        if kind == "f":
            made.first_token(handle, now_s)
        elif kind == "p":
            made.progress(handle, float(pick))
        else:
            made.release(handle, 50.0 if kind == "r" else 0.0, now_s)
            open_handles.remove(handle)
        assert made.in_flight(0) == len(open_handles)
        assert sorted(made.handles(0)) == sorted(open_handles)
        row = predict(made, now_s=now_s)
        assert all(math.isfinite(value) and value >= 0 for value in row[:4])
        assert 0 <= made.harm(0, 100.0, now_s) <= len(open_handles)
    for handle in open_handles:
        made.release(handle, 0.0, now_s)
    assert made.queued_prefill(0, now_s) == 0.0
