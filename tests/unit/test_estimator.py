# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Speed estimation from response timings."""

from __future__ import annotations

import random

import pytest

from vllm_goodput.router.estimator import Sample, SpeedEstimator

# o [s], p [s/token], d0 [s/step], d1 [s/step/sequence] of a fast, a middling and a slow device.
DEVICES = [
    (0.02, 65e-6, 0.0137, 1.1e-4),
    (0.05, 1.8e-4, 0.053, 4.4e-4),
    (0.08, 1.2e-3, 0.072, 1.2e-3),
]


def feed(estimator, device, rng, count, noise=0.03, factor=1.0):
    o, p, d0, d1 = (factor * value for value in device)
    for _ in range(count):
        prompt, output = rng.randint(20, 2000), rng.randint(5, 300)
        sequences = rng.randint(1, 16)
        jitter = rng.gauss(1, noise)
        estimator.add(Sample((o + p * prompt) * jitter, 1, prompt, 0, 0))
        steps = output - 1
        decode_s = (d0 + d1 * sequences) * steps * rng.gauss(1, noise)
        estimator.add(Sample(decode_s, 0, 0, steps, steps * sequences))


def assert_close(estimator, device, factor=1.0, rel=0.1):
    _, p, d0, d1 = (factor * value for value in device)
    assert estimator.prefill_token_s() == pytest.approx(p, rel=rel)
    for sequences in (1, 8, 16):
        assert estimator.decode_step_s(sequences) == pytest.approx(d0 + d1 * sequences, rel=rel)


@pytest.mark.parametrize("device", DEVICES)
def test_it_finds_the_speed_of_a_streaming_instance(device):
    estimator = SpeedEstimator()
    assert not estimator.known
    feed(estimator, device, random.Random(1), 20)
    assert estimator.known
    assert_close(estimator, device)


@pytest.mark.parametrize("device", DEVICES)
def test_whole_answers_alone_are_enough(device):
    o, p, d0, d1 = device
    rng, estimator = random.Random(2), SpeedEstimator()
    for _ in range(60):
        prompt, steps, sequences = rng.randint(20, 2000), rng.randint(5, 300), rng.randint(1, 16)
        time_s = o + p * prompt + (d0 + d1 * sequences) * steps
        estimator.add(Sample(time_s * rng.gauss(1, 0.01), 1, prompt, steps, steps * sequences))
    assert_close(estimator, device, rel=0.15)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_tenfold_change_of_speed_is_learned_within_20_responses(device, factor):
    rng, estimator = random.Random(3), SpeedEstimator()
    feed(estimator, device, rng, 100)
    feed(estimator, device, rng, 20, factor=factor)
    assert_close(estimator, device, factor=factor, rel=0.2)


@pytest.mark.parametrize("device", DEVICES)
def test_outliers_do_not_move_it_much(device):
    rng, estimator = random.Random(4), SpeedEstimator()
    for _ in range(20):
        feed(estimator, device, rng, 5)
        estimator.add(Sample(30.0, 1, 100, 0, 0))  # a stall of half a minute
    assert_close(estimator, device, rel=0.3)


def test_slow_first_tokens_do_not_change_the_speed_of_decoding():
    """Learned from whole answers, o and d are coupled; a change of o alone must not push d to nothing."""
    estimator = SpeedEstimator()
    for _ in range(15):
        estimator.add(Sample(0.010 + 0.003 * 50, 1, 20, 50, 50))
    for _ in range(8):
        estimator.add(Sample(0.170, 1, 20, 0, 0))
    assert estimator.decode_step_s(1) == pytest.approx(0.003, rel=0.5)


def test_coefficients_never_turn_negative():
    rng, estimator = random.Random(5), SpeedEstimator()
    for _ in range(500):
        estimator.add(
            Sample(
                rng.uniform(0.001, 10), rng.randint(0, 1), rng.randint(0, 9), rng.randint(0, 9), 5
            )
        )
        assert min(estimator.overhead_s(), estimator.prefill_token_s()) >= 0
        assert estimator.decode_step_s(4) > 0


def test_empty_samples_teach_nothing():
    estimator = SpeedEstimator()
    estimator.add(Sample(1.0, 0, 0, 0, 0))
    estimator.add(Sample(0.0, 1, 5, 0, 0))
    assert not estimator.known
