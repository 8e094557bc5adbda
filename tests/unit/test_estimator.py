# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Speed estimation from response timings."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import estimator as benchmark
from benchmarks.estimator_data import Answer, read_cara
from benchmarks.estimator_replay import RouterForecaster, errors
from vllm_goodput.router.estimator import Sample, SpeedEstimator

ANSWERS = Path(__file__).parents[1] / "data" / "cara_answers.csv"
# o [s], p [s/token], d0 [s/step], d1 [s/step/sequence] of a fast, a middling and a slow device.
DEVICES = [
    (0.02, 65e-6, 0.0137, 1.1e-4),
    (0.05, 1.8e-4, 0.053, 4.4e-4),
    (0.08, 1.2e-3, 0.072, 1.2e-3),
]


def feed(
    estimator, device, rng, count, noise=0.03, factor=1.0, sequences=(1, 16), cached=0.0, stalls=0.0
):
    """`count` streamed answers; some prompts nine tenths cached, some times longer by up to half a minute."""
    o, p, d0, d1 = (factor * value for value in device)
    for _ in range(count):
        prompt, output = rng.randint(20, 2000), rng.randint(5, 300)
        n = rng.randint(*sequences)
        computed = prompt * (0.1 if rng.random() < cached else 1.0)
        ttft_s = (o + p * computed) * rng.gauss(1, noise) + 30 * rng.random() * (
            rng.random() < stalls
        )
        estimator.add(Sample(ttft_s, 1, prompt, 0, 0))
        steps = output - 1
        decode_s = (d0 + d1 * n) * steps * rng.gauss(1, noise)
        decode_s += 30 * rng.random() * (rng.random() < stalls)
        estimator.add(Sample(decode_s, 0, 0, steps, steps * n))


def assert_close(estimator, device, factor=1.0, rel=0.1):
    _, p, d0, d1 = (factor * value for value in device)
    assert estimator.prefill_token_s() == pytest.approx(p, rel=rel)
    for sequences in (1, 8, 16):
        assert estimator.decode_step_s(sequences) == pytest.approx(d0 + d1 * sequences, rel=rel)


@pytest.mark.parametrize("device", DEVICES)
def test_without_noise_it_is_exact(device):
    o, p, d0, d1 = device
    estimator = SpeedEstimator()
    assert not estimator.known
    feed(estimator, device, random.Random(0), 300, noise=0.0)
    assert estimator.known
    assert estimator.samples == 600
    assert estimator.overhead_s() == pytest.approx(o, rel=0.01)
    assert estimator.prefill_token_s() == pytest.approx(p, rel=0.01)
    for sequences in (1, 16, 64):
        assert estimator.decode_step_s(sequences) == pytest.approx(d0 + d1 * sequences, rel=0.01)
    assert abs(estimator.decode_offset_s()) < 0.05 * d0


@pytest.mark.parametrize("device", DEVICES)
def test_it_finds_the_speed_of_a_streaming_instance(device):
    estimator = SpeedEstimator()
    feed(estimator, device, random.Random(1), 20)
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


@pytest.mark.parametrize("offset", [-1.0, 0.0, 2.0])
def test_a_fixed_time_of_decoding_is_told_from_the_steps(offset):
    """For example where the last token that is counted costs no step."""
    rng, estimator, step_s = random.Random(6), SpeedEstimator(), 0.03
    for _ in range(200):
        steps = rng.randint(5, 300)
        time_s = step_s * (steps + offset) * rng.gauss(1, 0.01)
        estimator.add(Sample(time_s, 0, 0, steps, 4 * steps))
    assert estimator.decode_step_s(4) == pytest.approx(step_s, rel=0.01)
    assert estimator.decode_offset_s() == pytest.approx(offset * step_s, abs=0.2 * step_s)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("trouble", [{}, {"cached": 0.2, "stalls": 0.02}])
def test_a_tenfold_change_of_speed_is_learned_within_20_responses(device, factor, trouble):
    rng, estimator = random.Random(3), SpeedEstimator()
    feed(estimator, device, rng, 150, **trouble)
    feed(estimator, device, rng, 20, factor=factor, **trouble)
    for _ in range(20):  # and stays learned
        assert_close(estimator, device, factor=factor, rel=0.15)
        feed(estimator, device, rng, 1, factor=factor, **trouble)


@pytest.mark.parametrize("device", DEVICES)
def test_a_change_of_decoding_alone_leaves_prefill_as_it_was(device):
    o, p, d0, d1 = device
    rng, estimator = random.Random(7), SpeedEstimator()
    feed(estimator, device, rng, 100)
    feed(estimator, (o, p, 4 * d0, 4 * d1), rng, 20)
    assert_close(estimator, (o, p, 4 * d0, 4 * d1), rel=0.15)


@pytest.mark.parametrize("device", DEVICES)
def test_a_queue_that_nobody_saw_is_got_over_once_it_has_drained(device):
    o, p, d0, d1 = device
    rng, estimator = random.Random(14), SpeedEstimator()
    feed(estimator, device, rng, 100)
    for _ in range(30):
        prompt = rng.randint(20, 2000)
        estimator.add(Sample(rng.uniform(5, 15) + o + p * prompt, 1, prompt, 0, 0))
        estimator.add(Sample((d0 + 8 * d1) * 100 * rng.gauss(1, 0.03), 0, 0, 100, 800))
    assert estimator.overhead_s() + 1000 * estimator.prefill_token_s() > 5
    feed(estimator, device, rng, 20)
    assert_close(estimator, device, rel=0.15)


@pytest.mark.parametrize("device", DEVICES)
def test_a_drift_is_followed(device):
    rng, estimator = random.Random(8), SpeedEstimator()
    feed(estimator, device, rng, 50)
    for step in range(200):
        factor = 1.0 + 0.5 * step / 200
        feed(estimator, device, rng, 1, factor=factor)
    assert_close(estimator, device, factor=factor, rel=0.1)


@pytest.mark.parametrize("device", DEVICES)
def test_outliers_do_not_move_it_much(device):
    rng, estimator = random.Random(4), SpeedEstimator()
    for _ in range(20):
        feed(estimator, device, rng, 5)
        estimator.add(Sample(30.0, 1, 100, 0, 0))  # a stall of half a minute
        estimator.add(Sample(60.0, 0, 0, 50, 100))
    assert_close(estimator, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cached", [0.2, 0.4])
def test_cached_prefixes_that_nobody_foresaw_do_not_make_prefill_look_fast(device, cached):
    rng, estimator = random.Random(9), SpeedEstimator()
    feed(estimator, device, rng, 300, cached=cached)
    assert_close(estimator, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_long_time_with_few_sequences_does_not_forget_many(device):
    rng, estimator = random.Random(10), SpeedEstimator()
    feed(estimator, device, rng, 60)
    feed(estimator, device, rng, 1500, sequences=(2, 2))
    assert_close(estimator, device)


def test_what_is_not_seen_for_long_stays_as_it_was():
    """After hours of short prompts and one that decodes, a long prompt is predicted as before."""
    o, p, d = 0.03, 2e-4, 0.03
    rng, estimator = random.Random(11), SpeedEstimator()
    for _ in range(40):
        prompt = rng.randint(20, 2000)
        estimator.add(Sample((o + p * prompt) * rng.gauss(1, 0.03), 1, prompt, 0, 0))
    for _ in range(1500):
        estimator.add(Sample((o + p * 20) * rng.gauss(1, 0.03), 1, 20, 0, 0))
        estimator.add(Sample(d * 50 * rng.gauss(1, 0.03), 0, 0, 50, 50))
    assert estimator.prefill_token_s() == pytest.approx(p, rel=0.1)


def test_slow_first_tokens_do_not_change_the_speed_of_decoding():
    """Learned from whole answers, o and d are coupled; a change of o alone must not push d to nothing."""
    estimator = SpeedEstimator()
    for _ in range(15):
        estimator.add(Sample(0.010 + 0.003 * 50, 1, 20, 50, 50))
    for _ in range(8):
        estimator.add(Sample(0.170, 1, 20, 0, 0))
    assert estimator.decode_step_s(1) == pytest.approx(0.003, rel=0.5)


def test_a_very_slow_first_answer_is_got_over():
    """Engines compile and capture graphs at their first requests."""
    rng, estimator = random.Random(12), SpeedEstimator()
    estimator.add(Sample(60.0, 1, 100, 0, 0))
    estimator.add(Sample(30.0, 0, 0, 20, 20))
    feed(estimator, DEVICES[0], rng, 20)
    assert_close(estimator, DEVICES[0], rel=0.15)


NUMBERS = st.one_of(
    st.floats(min_value=0, max_value=1e13), st.sampled_from([0.0, math.nan, math.inf, -1.0, 1e300])
)


@settings(max_examples=200)
@given(st.lists(st.tuples(*[NUMBERS] * 5), max_size=40))
def test_whatever_comes_the_estimate_stays_finite_and_not_negative(samples):
    estimator = SpeedEstimator()
    for sample in samples:
        estimator.add(Sample(*sample))
    assert 0 <= estimator.overhead_s() < math.inf
    assert 0 <= estimator.prefill_token_s() < math.inf
    assert 0 < estimator.decode_step_s(4) < math.inf
    assert math.isfinite(estimator.decode_offset_s())


@pytest.mark.parametrize(
    "sample",
    [
        Sample(1.0, 0, 0, 0, 0),
        Sample(0.0, 1, 5, 0, 0),
        Sample(-1.0, 1, 5, 0, 0),
        Sample(math.nan, 1, 5, 0, 0),
        Sample(math.inf, 1, 5, 0, 0),
        Sample(1.0, 1, math.nan, 0, 0),
        Sample(1.0, 1, math.inf, 0, 0),
        Sample(1.0, 0, -5, 10, 10),
        Sample(1.0, 1, 1e300, 0, 0),
    ],
)
def test_samples_without_work_or_time_or_with_impossible_numbers_teach_nothing(sample):
    taught, untaught = SpeedEstimator(), SpeedEstimator()
    for estimator in (taught, untaught):
        feed(estimator, DEVICES[1], random.Random(13), 10)
    taught.add(sample)
    assert taught.samples == untaught.samples
    assert taught.overhead_s() == untaught.overhead_s()
    assert taught.decode_step_s(3) == untaught.decode_step_s(3)


def test_measured_instances_are_predicted_well():
    """Answers of real instances through the router, with their true lengths; see tests/data/cara.md."""
    instances: dict[str, list[Answer]] = {}
    with ANSWERS.open(newline="") as file:
        for row in csv.DictReader(file):
            answer = Answer(
                float(row["arrival_s"]),
                int(row["prompt_tokens"]),
                int(row["output_tokens"]),
                float(row["ttft_s"]),
                float(row["e2e_s"]),
            )
            instances.setdefault(row["instance"], []).append(answer)
    found = np.abs(errors(list(instances.values()), RouterForecaster, warm_up=5))
    assert len(found) > 200
    assert np.median(found) <= 0.03
    assert np.quantile(found, 0.9) <= 0.10


HEADER = "t_unix_s,model,gpu,prompt_tokens,output_tokens,ttft_s,e2e_s\n"


def test_bursts_that_overlap_are_taken_for_different_instances(tmp_path):
    bursts = [(1000.0, "a"), (1010.0, "a"), (1100.0, "a"), (1000.0, "b")]  # 20 s each
    rows = [
        f"{begin + i},{model},gpu,{i + 1},10,0.1,2.0\n"
        for begin, model in bursts
        for i in range(20)
    ]
    (tmp_path / "cara.csv").write_text(HEADER + "".join(rows))
    instances = read_cara(tmp_path / "cara.csv")
    assert {name: len(found) for name, found in instances.items()} == {
        "a on gpu #1": 40,
        "a on gpu #2": 20,
        "b on gpu #1": 20,
    }
    assert instances["a on gpu #1"][0] == Answer(0.0, 1, 10, 0.1, 2.0)
    assert instances["a on gpu #1"][20].arrival_s == pytest.approx(100.0)


def test_missing_measurements_are_named(tmp_path, capsys):
    assert benchmark.main(["--cara", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
