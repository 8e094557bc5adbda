# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The mixture of experts in C++ against a plain NumPy model of it, on random models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vllm_goodput._C import Forest, Mixture
from vllm_goodput.predictor.features import DENSE_NAMES, GRAM_COLUMNS, Features
from vllm_goodput.predictor.model import Gate, Heads, MoEModel, assemble

LEVELS = np.array([0.1, 0.5, 0.9])
MODELS = ["small", "large"]
TASKS = ["a", "b", "c"]
HEADS = 11
WIDTH = len(DENSE_NAMES) + HEADS + len(MODELS)


def stumps(rng, features, trees=40):
    """Trees of one split each."""
    feature = np.full((trees, 3), -1)
    feature[:, 0] = rng.integers(features, size=trees)
    left = np.zeros((trees, 3), dtype=int)
    left[:, 0] = np.arange(trees) * 3 + 1
    left[:, 1:] = np.arange(2 * trees).reshape(trees, 2)
    leaves = rng.normal(scale=0.2, size=(2 * trees, len(LEVELS)))
    return Forest(
        feature.ravel(),
        rng.normal(size=3 * trees),
        left.ravel(),
        rng.integers(2, size=3 * trees),
        np.arange(trees) * 3,
        leaves,
        np.array([2.0, 3.0, 4.0]),
        features,
    )


def make(seed):
    rng = np.random.default_rng(seed)

    def some(*shape):
        return rng.normal(size=shape).astype(np.float32)

    heads = Heads(
        [f"h{i}" for i in range(HEADS)],
        some(GRAM_COLUMNS, HEADS),
        some(HEADS),
        some(len(MODELS), HEADS),
    )
    gate = Gate(
        TASKS,
        np.array([4, 0, 9]),
        some(3),
        some(3) - 2,
        rng.uniform(0.3, 1, 3).astype(np.float32),
    )
    experts = [stumps(rng, WIDTH + len(LEVELS)) for _ in TASKS] + [stumps(rng, WIDTH)]
    return MoEModel(LEVELS, MODELS, heads, gate, experts, some(4, len(LEVELS)) / 10, {})


def requests(seed, count):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(count, len(DENSE_NAMES))).astype(np.float32)
    dense[rng.random(dense.shape) < 0.1] = np.nan
    ends = np.concatenate([[0], np.cumsum(rng.integers(0, 60, count))])
    features = Features(
        dense,
        ends,
        rng.integers(GRAM_COLUMNS, size=ends[-1]).astype(np.int32),
        rng.random(ends[-1]).astype(np.float32) / 8,
    )
    models = rng.choice([*MODELS, "", "other"], count).tolist()
    tasks = [str(t) if t else None for t in rng.choice([*TASKS, "other", ""], count)]
    return features, models, tasks


def expected(model, features, models, tasks):
    """As predictor/model.py describes it."""
    grams = np.zeros((len(features), GRAM_COLUMNS))
    for row in range(len(features)):
        part = slice(features.ends[row], features.ends[row + 1])
        np.add.at(grams[row], features.indices[part], features.weights[part])
    known = [MODELS.index(name) if name in MODELS else -1 for name in models]
    scores = grams @ model.heads.weights.astype(float) + model.heads.bias
    for row, at in enumerate(known):
        if at >= 0:
            scores[row] += model.heads.model_bias[at]
    rows = assemble(features.dense, scores.astype(np.float32), known, len(MODELS))
    gate = model.gate
    claims = 1 / (1 + np.exp(-(scores[:, gate.heads] * gate.slope + gate.offset)))
    weights = claims * gate.declared / np.maximum(1, claims.sum(axis=1, keepdims=True))
    for row, task in enumerate(tasks):
        if task in TASKS:
            weights[row] = np.where(np.array(TASKS) == task, gate.declared, 0)
    weights[weights < 0.02] = 0
    weights = np.column_stack([weights, 1 - weights.sum(axis=1)])
    general = model.experts[-1].predict(rows)
    rows = np.concatenate([rows, general], axis=1)
    quantiles = [expert.predict(rows) for expert in model.experts[:-1]] + [general]
    out = sum(
        weights[:, [i]] * (quantiles[i] + model.offsets[i].astype(float))
        for i in range(len(TASKS) + 1)
    )
    return np.clip(np.sort(out, axis=1), 0, 21), weights


@pytest.mark.parametrize("seed", range(5))
def test_it_computes_what_the_model_does(seed):
    model, asked = make(seed), requests(seed, 150)
    quantiles, weights = model.predict(*asked)
    wanted, gate = expected(model, *asked)
    assert (quantiles.dtype, quantiles.shape) == (np.float32, (150, 3))
    np.testing.assert_allclose(weights, gate, atol=1e-5)
    # A score next to a threshold may fall on its other side for another order of summing.
    close = np.isclose(quantiles, wanted, atol=1e-4).all(axis=1)
    assert close.mean() >= 0.98


def test_a_request_alone_is_as_in_a_batch():
    model, (features, models, tasks) = make(7), requests(7, 130)
    quantiles, weights = model.predict(features, models, tasks)
    for row in range(130):
        alone = model.predict(features.row(row), [models[row]], [tasks[row]])
        np.testing.assert_array_equal(alone[0][0], quantiles[row])
        np.testing.assert_array_equal(alone[1][0], weights[row])


def test_nothing_asked_nothing_said():
    quantiles, weights = make(0).predict(*requests(0, 0))
    assert (quantiles.shape, weights.shape) == ((0, 3), (0, 4))


def test_without_tasks_the_general_expert_answers():
    model = make(1)
    empty = np.zeros(0, dtype=np.float32)
    model = replace(
        model,
        gate=Gate([], np.zeros(0, dtype=np.int64), empty, empty, empty),
        experts=model.experts[-1:],
        offsets=model.offsets[-1:],
    )
    features, models, tasks = requests(1, 20)
    quantiles, weights = model.predict(features, models, tasks)
    assert (weights == 1).all()
    assert quantiles.shape == (20, 3)


def test_a_model_that_gives_no_number_is_an_error():
    model = make(2)
    broken = replace(model, offsets=np.full_like(model.offsets, np.inf))
    with pytest.raises(ValueError, match="not a number"):
        broken.predict(*requests(2, 3))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("models", lambda v: v[:1]),
        ("tasks", lambda v: v[:2]),
        ("head_weights", lambda v: v[:-1]),
        ("head_bias", lambda v: v[:-1]),
        ("head_model_bias", lambda v: v[:-1]),
        ("gate_heads", lambda v: v + 7),
        ("gate_heads", lambda v: v - 1),
        ("gate_slope", lambda v: v[:2]),
        ("declared", lambda v: v[:2]),
        ("experts", lambda v: v[::-1]),
        ("experts", lambda v: v[:-1]),
        ("experts", lambda v: []),
        ("offsets", lambda v: v[:-1]),
    ],
)
def test_parts_that_do_not_fit_are_refused(name, change):
    model = make(3)
    parts = {
        "models": model.models,
        "tasks": model.gate.tasks,
        "head_weights": model.heads.weights,
        "head_bias": model.heads.bias,
        "head_model_bias": model.heads.model_bias,
        "gate_heads": model.gate.heads,
        "gate_slope": model.gate.slope,
        "gate_offset": model.gate.offset,
        "declared": model.gate.declared,
        "experts": model.experts,
        "offsets": model.offsets,
    }
    Mixture(**parts)
    with pytest.raises(ValueError, match="length model"):
        Mixture(**{**parts, name: change(parts[name])})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dense", lambda v: v[:, :-1]),
        ("dense", lambda v: v[:-1]),
        ("ends", lambda v: v[:-1]),
        ("ends", lambda v: v[::-1]),
        ("ends", lambda v: v - 1),
        ("ends", lambda v: np.where(np.arange(len(v)) == 1, 10**9, v)),
        ("ends", lambda v: v + 10**6),
        ("indices", lambda v: v[:-1]),
        ("indices", lambda v: v - 10**6),
        ("indices", lambda v: v + GRAM_COLUMNS),
        ("weights", lambda v: v[:-1]),
    ],
)
def test_features_that_lead_outside_are_refused(name, change):
    features, models, tasks = requests(4, 10)
    model = make(4)
    model.predict(features, models, tasks)
    with pytest.raises(ValueError):
        model.predict(replace(features, **{name: change(getattr(features, name))}), models, tasks)
    with pytest.raises(ValueError):
        model.predict(features, models, tasks[:-1])
