# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Corrections by finished requests: the C++ against a plain NumPy model of the method, and figures by hand."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_goodput.predictor.online import Corrections

LEVELS = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
BUCKETS, PER_OCTAVE = 168, 8
LOG_EDGES = np.log(2.0 ** (np.arange(1, BUCKETS + 1) / PER_OCTAVE))
WIDTH = math.log(2.0) / PER_OCTAVE


def median(quantiles, levels):
    return float(np.interp(0.5, levels, quantiles))


@dataclass
class KeyModel:
    """What is known of one key."""

    levels: np.ndarray
    known: bool
    losses: np.ndarray = field(default_factory=lambda: np.zeros(2))
    count: float = 0.0
    residual: float = 0.0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BUCKETS))

    def __post_init__(self):
        self.odds = 4.0 if self.known else 1.0
        self.histogram = np.zeros(len(self.levels))
        self.conformal = np.zeros(len(self.levels))

    @property
    def shift(self):
        return self.residual * self.count / (self.count + (60.0 if self.known else 12.0))

    @property
    def share(self):
        return 1.0 / (1.0 + math.exp(-self.odds))

    def learn(self, raw, final, log_len, censored):
        if censored:
            log_len = max(log_len, median(final, self.levels))
        else:
            if self.count:
                self.weigh(raw, log_len)
            step = np.where(log_len <= final, self.levels - 1.0, self.levels)
            self.conformal = np.clip(self.conformal + 0.01 * step, -2.0, 2.0)
        residual = float(np.clip(log_len - median(raw, self.levels), -3.0, 3.0))
        self.count = 0.98 * self.count + 1.0
        self.residual += (residual - self.residual) / self.count
        self.counts *= 0.995
        bucket = math.ceil(log_len / math.log(2.0) * PER_OCTAVE) - 1
        self.counts[min(BUCKETS - 1, max(0, bucket))] += 1.0
        cumulative = np.cumsum(self.counts)
        wanted = self.levels * cumulative[-1]
        at = np.minimum(np.searchsorted(cumulative, wanted), BUCKETS - 1)
        within = (cumulative[at] - wanted) / np.maximum(1e-12, self.counts[at])
        own = LOG_EDGES[at] - WIDTH * np.clip(within, 0.0, 1.0)
        trust = self.count / (self.count + 2.0)
        self.histogram = trust * own + (1.0 - trust) * (raw + self.shift)

    def weigh(self, raw, log_len):
        model = raw + self.shift
        blend = self.share * model + (1.0 - self.share) * self.histogram
        error = log_len - blend
        loss = np.maximum(self.levels * error, (self.levels - 1.0) * error).mean()
        self.losses = 0.98 * self.losses + (loss, 1.0)
        mean = self.losses[0] / self.losses[1]
        slope = np.where(log_len > blend, -self.levels, 1.0 - self.levels)
        if mean > 0.0:
            step = 0.25 * float(np.mean(slope * (model - self.histogram))) / mean
            self.odds = min(8.0, max(-8.0, self.odds - step))


class Model:
    """The whole of it, a request at a time."""

    def __init__(self, levels, max_keys):
        self.levels, self.max_keys = levels, max_keys
        self.keys = OrderedDict()
        self.normal = np.array([NormalDist().inv_cdf(level) for level in levels])

    def apply(self, raw, key, unknown, session_shift):
        state = self.keys.get(key)
        out = raw + session_shift + (state.shift if state else 0.0)
        if state:
            out = state.share * out + (1.0 - state.share) * state.histogram + state.conformal
        doubt = (0.0, 0.4, 0.8)[unknown] / (1.0 + (state.count if state else 0.0) / 3.0)
        return np.sort(out + doubt * self.normal)

    def learn(self, key, known, raw, final, log_len, censored):
        state = self.keys.setdefault(key, KeyModel(self.levels, known))
        self.keys.move_to_end(key)
        if len(self.keys) > self.max_keys:
            self.keys.popitem(last=False)
        residual = log_len - (median(raw, self.levels) + state.shift)
        state.learn(raw, final, log_len, censored)
        return max(0.0, residual) if censored else residual


def quantiles(rng, levels):
    return np.sort(rng.normal(rng.uniform(0, 9), rng.uniform(0.1, 2), len(levels)))


@pytest.mark.parametrize(
    "levels",
    [
        LEVELS,
        LEVELS[[0, 2, 4, 7]],  # the median lies between two
        np.array([0.5, 0.9]),
        np.array([0.6, 0.7, 0.8]),  # the median lies outside
        np.array([0.1, 0.3]),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_it_computes_what_the_model_does(levels, seed):
    rng = np.random.default_rng(seed)
    corrections, model = Corrections(levels, max_keys=4), Model(levels, max_keys=4)
    names = [(f"t{i % 4}", f"m{i % 3}") for i in range(6)]
    centre = rng.uniform(0, 9, len(names))
    for _ in range(600):
        which = int(rng.integers(len(names))) if rng.random() < 0.4 else 0
        key, unknown = names[which], which % 3
        raw, shift = quantiles(rng, levels), float(rng.normal())
        (final,) = corrections.apply(raw[None], [key], [unknown], [shift])
        np.testing.assert_allclose(final, model.apply(raw, key, unknown, shift), atol=1e-9)
        log_len = float(max(0.0, centre[which] + rng.normal() * rng.choice([0.1, 1.0, 8.0])))
        told = (key, unknown == 0, raw, final, log_len, bool(rng.random() < 0.2))
        assert corrections.learn(*told) == pytest.approx(model.learn(*told), abs=1e-9)
        assert len(corrections) == len(model.keys)


def test_a_batch_is_its_rows():
    rng = np.random.default_rng(5)
    corrections = Corrections(LEVELS)
    keys = [("a", "m"), ("b", "m"), ("a", "n")]
    for _ in range(30):
        raw = quantiles(rng, LEVELS)
        corrections.learn(keys[rng.integers(2)], True, raw, raw, rng.uniform(0, 9), False)
    raw = np.array([quantiles(rng, LEVELS) for _ in range(3)])
    together = corrections.apply(raw, keys, [0, 1, 2], [0.0, 0.3, -0.2])
    for i in range(3):
        (one,) = corrections.apply(raw[i : i + 1], [keys[i]], [i], [(0.0, 0.3, -0.2)[i]])
        np.testing.assert_array_equal(one, together[i])
    assert corrections.apply(np.empty((0, 8)), [], [], []).shape == (0, 8)


def test_before_anything_finished_only_doubt_and_session_count():
    raw = np.linspace(3.0, 5.0, 8)[None]
    corrections = Corrections(LEVELS)
    same, doubted = corrections.apply(np.repeat(raw, 2, axis=0), [("t", "m")] * 2, [0, 2], [0.5, 0])
    np.testing.assert_allclose(same, raw[0] + 0.5)
    # A normal distribution of deviation 0.8 is added: nothing at the median, 1.2816 deviations at q90.
    assert doubted[3] == pytest.approx(raw[0, 3])
    assert doubted[5] - raw[0, 5] == pytest.approx(0.8 * 1.2815516)


def test_the_first_residual_by_hand():
    corrections = Corrections(LEVELS)
    raw = np.linspace(3.0, 5.0, 8)
    middle = raw[3]
    # One observation against twelve of the model's own: a thirteenth of the error is believed.
    assert corrections.learn(("t", "m"), False, raw, raw, middle + 1.3, False) == pytest.approx(1.3)
    assert corrections.learn(("t", "m"), False, raw, raw, middle + 1.3, False) == pytest.approx(1.2)


def test_a_cut_off_answer_teaches_no_shorter_length():
    corrections = Corrections(LEVELS)
    raw = np.linspace(3.0, 5.0, 8)
    for _ in range(50):
        assert corrections.learn(("t", "m"), True, raw, raw, 1.0, True) == 0.0
    (after,) = corrections.apply(raw[None], [("t", "m")], [0], [0.0])
    assert after[3] == pytest.approx(raw[3], abs=0.05)


def test_the_least_recently_observed_key_is_forgotten():
    corrections = Corrections(LEVELS, max_keys=2)
    raw = np.linspace(3.0, 5.0, 8)

    def learned(name):
        (found,) = corrections.apply(raw[None], [(name, "m")], [0], [0.0])
        return not np.array_equal(found, raw)

    for name in ("a", "b", "a", "c"):
        corrections.learn((name, "m"), True, raw, raw, 9.0, False)
        learned("b")  # to be looked at is not to be observed
    assert [learned(name) for name in "abc"] == [True, False, True]
    assert len(corrections) == 2


def test_names_are_kept_apart():
    corrections = Corrections(LEVELS)
    raw = np.linspace(3.0, 5.0, 8)
    names = [("a", "bc"), ("ab", "c"), ("a\0b", "c"), ("\udcff", "c"), ("\udcfe", "c"), ("ÿ", "c")]
    for key in names:
        corrections.learn(key, True, raw, raw, 4.0, False)
    assert len(corrections) == len(names)


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(0, 21), min_size=8, max_size=8).map(sorted),
            st.floats(0, 45),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.floats(-3, 3),
)
@settings(max_examples=50)
def test_quantiles_never_fall_and_are_numbers(finished, shift):
    corrections = Corrections(LEVELS)
    for raw, log_len, censored in finished:
        (final,) = corrections.apply(np.array([raw]), [("t", "m")], [2], [shift])
        assert (np.diff(final) >= 0).all()
        assert np.isfinite(final).all()
        corrections.learn(("t", "m"), False, np.array(raw), final, log_len, censored)


@pytest.mark.parametrize("levels", [[0.5], [0.5, 0.5], [0.9, 0.1], [0.0, 0.5], [0.5, 1.5]])
def test_levels_that_are_none_are_refused(levels):
    with pytest.raises(ValueError):
        Corrections(np.array(levels))


def test_wrong_shapes_are_refused():
    corrections = Corrections(LEVELS)
    raw = np.zeros((2, 8))
    with pytest.raises(ValueError, match="one row per key"):
        corrections.apply(raw, [("t", "m")], [0], [0.0])
    with pytest.raises(ValueError, match="one row per key"):
        corrections.apply(raw[:, :5], [("t", "m")] * 2, [0, 0], [0.0, 0.0])
    with pytest.raises(ValueError, match="one entry per level"):
        corrections.learn(("t", "m"), True, raw[0, :5], raw[0], 1.0, False)
