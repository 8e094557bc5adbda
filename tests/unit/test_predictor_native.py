# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The C++ text features against a plain Python model, and trees against XGBoost's own predictions."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput._C import TEXT_BUCKETS, TEXT_STATS, Forest, request_features, text_features
from vllm_goodput.predictor.features import NUMBERS, STATS, WINDOWS, extract
from vllm_goodput.predictor.sessions import SessionLengths
from vllm_goodput.predictor.trees import from_booster
from vllm_goodput.predictor.view import RequestView
from vllm_goodput.predictor.xgb import xgb

MASK = 2**64 - 1
WORD = re.compile(rb"[A-Za-z\x80-\xff]+|[0-9]+|[\x21-\x7e]|\x00")


def mix(state: int, value: int) -> int:
    z = ((state ^ value) + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def fnv(word: bytes) -> int:
    state = 0xCBF29CE484222325
    for byte in (
        word.lower() if word.isascii() else bytes(b + 32 if 65 <= b <= 90 else b for b in word)
    ):
        state = ((state ^ byte) * 0x100000001B3) & MASK
    return state


def grams(text: str) -> dict[int, float]:
    counts: Counter[int] = Counter()
    previous = 0
    for word in WORD.findall(text.encode()):
        if word == b"\0":
            previous = 0
            continue
        value = fnv(word)
        counts[mix(0, value) % TEXT_BUCKETS] += 1
        if previous:
            counts[mix(0, (previous * 31 + value) & MASK) % TEXT_BUCKETS] += 1
        previous = value
    weights = {bucket: np.log1p(count) for bucket, count in counts.items()}
    norm = np.sqrt(sum(w * w for w in weights.values()))
    return {bucket: weight / norm for bucket, weight in weights.items()}


@given(st.text(max_size=200).filter(lambda t: not any(0xD800 <= ord(c) < 0xE000 for c in t)))
def test_grams_match_the_model(text):
    _, buckets, weights = text_features(text)
    assert len(set(buckets.tolist())) == len(buckets)
    got = dict(zip(buckets.tolist(), weights.tolist(), strict=True))
    assert got == pytest.approx(grams(text), rel=1e-5)


def test_windows_do_not_share_columns():
    view = RequestView(last="same words", first="same words")
    _, ends, indices, _ = request_features([(view, None)])
    half = len(indices) // 2
    assert ends.tolist() == [0, 2 * half]
    assert (indices[half:] - indices[:half] == TEXT_BUCKETS).all()


def stats_of(text: str) -> dict[str, float]:
    stats, *_ = text_features(text)
    return dict(zip(STATS, stats.tolist(), strict=True))


def test_stats_have_the_right_values():
    text = "  Ab 12, x?\nf(y) = [{'q_']: #9.\n"
    got = stats_of(text)
    size = len(text)
    count = {
        "log bytes": size,
        "log words": 5,  # Ab x f y q
        "log numbers": 2,
        "log digits": 3,
        "log lines": 2,
        "log longest line": len("f(y) = [{'q_']: #9."),
        "log ?": 1,
        "log .": 1,
        "log ,": 1,
        "log :": 1,
        "log (": 1,
        "log [{": 2,
        "log quotes": 2,
        "log `#": 1,
        "log =_": 2,
        "log leading space": 2,
        "log trailing space": 1,
    }
    for name, value in count.items():
        assert got[name] == pytest.approx(np.log1p(value)), name
    assert got["digit share"] == pytest.approx(3 / size)
    assert got["upper share"] == pytest.approx(1 / size)
    assert got["space share"] == pytest.approx(sum(c.isspace() for c in text) / size)
    symbols = sum(not c.isalnum() and not c.isspace() for c in text)
    assert got["symbol share"] == pytest.approx(symbols / size)
    assert got["non-ASCII share"] == 0
    assert (got["first byte"], got["last byte"]) == (ord("A"), ord("."))


def test_stats_of_no_text():
    got = stats_of("")
    assert (got.pop("first byte"), got.pop("last byte")) == (-1, -1)
    assert set(got.values()) == {0.0}


@given(st.text(alphabet=" \n\tx\0é", max_size=30))
def test_stats_are_finite(text):
    assert all(np.isfinite(value) for value in stats_of(text).values())


@pytest.mark.parametrize(
    "request_",
    [
        (RequestView(prompt_len="x"), None),
        (RequestView(last=b"a"), None),
        (RequestView(answer="\ud800"), None),
        (RequestView(answer_lens=(1.0, "x")), None),
        (RequestView(answer_lens=3), None),
        ("no view", None),
        (RequestView(), "no session"),
        (RequestView(),),
    ],
)
def test_what_is_no_request_is_refused(request_):
    with pytest.raises((TypeError, ValueError, AttributeError, RuntimeError)):
        request_features([(RequestView(), None), request_])


def test_a_view_that_changes_while_it_is_read_does_no_harm():
    view = RequestView(last="first words", answer="last words")

    class Changes:
        def __float__(self):
            view.last = view.answer = ""
            return 1.0

    view.last_chars = Changes()
    _, _, indices, _ = request_features([(view, None)])
    assert indices.max() < TEXT_BUCKETS  # of `last`, which had been read before


@pytest.fixture(scope="module")
def booster():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(600, 9)).astype(np.float32)
    rows[rng.random(rows.shape) < 0.15] = np.nan
    target = np.nan_to_num(rows[:, 0]) + rng.normal(size=600)
    trained = xgb.train(
        {
            "objective": "reg:quantileerror",
            "quantile_alpha": [0.1, 0.5, 0.9],
            "multi_strategy": "multi_output_tree",
            "tree_method": "hist",
            "max_depth": 5,
        },
        xgb.DMatrix(rows, target),
        30,
    )
    return trained, rows


@pytest.mark.parametrize("count", [1, 7, 8, 9, 600])
def test_trees_match_xgboost(booster, count):
    trained, rows = booster
    got = from_booster(trained).forest().predict(rows[:count])
    # Leaves are kept in half precision: 30 trees, each off by at most 2**-11 of a small value.
    np.testing.assert_allclose(got, trained.predict(xgb.DMatrix(rows[:count])), atol=5e-3)


def test_a_value_on_the_threshold_goes_right():
    forest = Forest([0, -1, -1], [1.0, 0, 0], [1, 0, 1], [1, 0, 0], [0], [[5.0], [9.0]], [0.5], 1)
    rows = np.array([[0.999], [1.0], [np.nan], [np.inf], [-np.inf]], dtype=np.float32)
    assert forest.predict(rows).ravel().tolist() == [5.5, 9.5, 5.5, 9.5, 5.5]


@pytest.mark.parametrize(
    ("feature", "left", "roots"),
    [
        ([0, -1, -1], [2, 0, 1], [0]),  # no right child
        ([0, -1, -1], [0, 0, 1], [0]),  # a circle
        ([1, -1, -1], [1, 0, 1], [0]),  # no such feature
        ([0, -1, -1], [1, 0, 2], [0]),  # no such leaf
        ([0, -1, -1], [1, 0, 1], [3]),  # no such root
    ],
)
def test_broken_trees_are_refused(feature, left, roots):
    with pytest.raises(ValueError, match="forest"):
        Forest(feature, [0.0] * 3, left, [0] * 3, roots, [[5.0], [9.0]], [0.5], 1)


def test_trees_need_not_lie_one_after_the_other():
    """The same two trees with their nodes, roots and leaves in another order."""
    trees = {"threshold": [0.0] * 6, "nan_left": [0] * 6, "base": [0.5], "features": 2}
    feature = [0, -1, -1, 1, -1, -1]
    plain = Forest(
        feature, left=[1, 0, 1, 4, 2, 3], roots=[0, 3], leaves=[[1], [2], [30], [40]], **trees
    )
    mixed = Forest(
        feature, left=[1, 3, 0, 4, 1, 2], roots=[3, 0], leaves=[[2], [30], [40], [1]], **trees
    )
    again = Forest(
        feature, left=[1, 0, 1, 4, 2, 3], roots=[0, 0], leaves=[[1], [2], [30], [40]], **trees
    )
    rows = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], dtype=np.float32)
    assert plain.predict(rows).ravel().tolist() == [31.5, 41.5, 32.5, 42.5]
    assert mixed.predict(rows).ravel().tolist() == [31.5, 41.5, 32.5, 42.5]
    assert again.predict(rows).ravel().tolist() == [2.5, 2.5, 4.5, 4.5]


@pytest.mark.parametrize(("feature", "far"), [(0, 2**16), (2**15, 1)])
def test_what_does_not_fit_into_packed_nodes_is_refused(feature, far):
    count = far + 2
    tree = {"threshold": [0.0] * count, "nan_left": [0] * count, "roots": [0]}
    with pytest.raises(ValueError, match="too far away"):
        Forest(
            [feature] + [-1] * (count - 1),
            left=[far] + [0] * (count - 1),
            leaves=[[1.0]],
            base=[0.0],
            features=2**15 + 1,
            **tree,
        )


def test_extract_fills_every_number():
    session = SessionLengths()
    session.add(100, 20)
    session.add(150, 40)
    view = RequestView(
        "m", 230, "last", "first", "answer", 4, 5, 6, 2, (), True, 1, 3, 2, 1, 4, 512, True
    )
    features = extract([(view, session), (RequestView(), None)])
    known, bare = (dict(zip(NUMBERS, row.tolist(), strict=False)) for row in features.dense)
    log20, log40 = np.log(20), np.log(40)
    expected = {
        "log prompt_len": np.log1p(230),
        "turn": 2,
        "log tools": np.log1p(3),
        "tool_results": 2,
        "form": 1,
        "log max_tokens": np.log(512),
        "stops": 4,
        "role": 1,
        "known lengths": 2,
        "log length -1": log40,
        "log length -2": log20,
        "mean log length": (log20 + log40) / 2,
        "max log length": log40,
        "min log length": log20,
        "std log length": (log40 - log20) / 2,
        "log growth": np.log1p(230 - 190),
        "repeats": 1,
        "same length twice": 0,
    }
    assert {name: known[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert np.isnan(known["log length -3"])
    assert bare["known lengths"] == 0
    assert np.isnan(bare["log max_tokens"])
    assert features.dense.shape == (2, len(NUMBERS) + len(WINDOWS) * TEXT_STATS)


def test_extract_of_nothing():
    features = extract([])
    assert len(features) == 0
    assert features.dense.shape[1] == len(NUMBERS) + len(WINDOWS) * TEXT_STATS
