# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The trained model: text heads, gate, experts and calibration, from features to quantiles of the log length.

scores  = n-grams · heads                    linear in the text; every head predicts a length or a task type
gate    = sigmoid(scores of the task heads)  what no task claims goes to the general expert
general = forest on (dense features, scores, model)
experts = forests on the same and the general expert's quantiles
output  = sum over experts of gate x (quantiles + the expert's calibration)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_goodput._C import Forest, sparse_times_dense
from vllm_goodput.predictor.features import DENSE_NAMES, Features

F32 = npt.NDArray[np.float32]
# Experts with less weight than this are not evaluated.
LEAST_WEIGHT = 0.02
MAX_LOG_LEN = 21.0  # natural log of tokens; no model has a context of a billion


@dataclass(frozen=True)
class Heads:
    """Linear functions of the n-grams.

    Args:
        names: one per head.
        weights: float32 [GRAM_COLUMNS, heads].
        bias: float32 [heads].
        model_bias: float32 [models, heads], added for a known model.
    """

    names: list[str]
    weights: F32
    bias: F32
    model_bias: F32


@dataclass(frozen=True)
class Gate:
    """Weight of each task's expert: sigmoid(slope * score + offset) of the task's head.

    Args:
        tasks: task types, in the order of the experts.
        heads: int [tasks], positions of the task heads.
        slope, offset: float32 [tasks].
        declared: float32 [tasks], weight of the expert for a request whose caller declares the task.
    """

    tasks: list[str]
    heads: npt.NDArray[np.int64]
    slope: F32
    offset: F32
    declared: F32

    def weights(self, scores: F32, tasks: Sequence[str | None]) -> F32:
        """float32 [n, tasks + 1]; the last column is the general expert's. Rows sum to 1.

        Args:
            scores: float32 [n, heads].
            tasks: declared task types; unknown ones and None leave it to the text.
        """
        claims = 1.0 / (1.0 + np.exp(-(scores[:, self.heads] * self.slope + self.offset)))
        total = claims.sum(axis=1, keepdims=True)
        weights = np.empty((len(scores), len(self.tasks) + 1), dtype=np.float32)
        weights[:, :-1] = claims * self.declared / np.maximum(1.0, total)
        index = {task: number for number, task in enumerate(self.tasks)}
        at = np.array([index.get(task, -1) if task else -1 for task in tasks], dtype=np.int64)
        told = np.flatnonzero(at >= 0)
        if len(told):
            weights[told, :-1] = 0.0
            weights[told, at[told]] = self.declared[at[told]]
        weights[:, -1] = 1.0 - weights[:, :-1].sum(axis=1)
        return weights


@dataclass(frozen=True)
class MoEModel:
    """A mixture of experts; immutable, so that a new one can take its place at any time.

    Args:
        levels: float64 [levels], rising quantile levels that the experts predict.
        models: names of the models known.
        heads, gate: see there.
        experts: one forest per task of the gate, then the general one, whose quantiles the others see too.
        offsets: float32 [tasks + 1, levels], added to the experts' quantiles.
        card: what it was trained on and how well it did.
    """

    levels: npt.NDArray[np.float64]
    models: list[str]
    heads: Heads
    gate: Gate
    experts: list[Forest]
    offsets: F32
    card: dict[str, object]

    def scores(self, features: Features, known: Sequence[int]) -> F32:
        """float32 [n, heads]; `known` holds each request's position in `models`, or -1."""
        out = np.zeros((len(features), len(self.heads.names)), dtype=np.float32)
        sparse_times_dense(
            features.ends, features.indices, features.weights, self.heads.weights, out, 0
        )
        out += self.heads.bias
        at = np.asarray(known, dtype=np.int64)
        rows = np.flatnonzero(at >= 0)
        out[rows] += self.heads.model_bias[at[rows]]
        return out

    def predict(
        self, features: Features, models: Sequence[str], tasks: Sequence[str | None]
    ) -> tuple[F32, F32]:
        """Quantiles of the natural log length, and the gate's weights.

        Args:
            features: of n requests.
            models: their model names.
            tasks: their declared task types or None.

        Returns:
            (float32 [n, levels], non-decreasing along the levels; float32 [n, tasks + 1])

        Raises:
            ValueError: the model is broken.
        """
        index = {name: i for i, name in enumerate(self.models)}
        known = [index.get(model, -1) for model in models]
        scores = self.scores(features, known)
        rows = assemble(features.dense, scores, known, len(self.models))
        weights = self.gate.weights(scores, tasks)
        *experts, general = self.experts
        quantiles = general.predict(rows)
        weights[:, :-1][weights[:, :-1] < LEAST_WEIGHT] = 0.0
        weights[:, -1] = 1.0 - weights[:, :-1].sum(axis=1)
        out = weights[:, -1:] * (quantiles + self.offsets[-1])
        rows = np.concatenate([rows, quantiles], axis=1)
        for number in np.flatnonzero(weights[:, :-1].any(axis=0)):
            used = np.flatnonzero(weights[:, number])
            quantiles = experts[number].predict(rows if len(used) == len(rows) else rows[used])
            out[used] += weights[used, number, None] * (quantiles + self.offsets[number])
        if not np.isfinite(out).all():
            raise ValueError("the length model predicts what is not a number")
        return np.clip(np.sort(out, axis=1), 0.0, MAX_LOG_LEN), weights


def assemble(dense: F32, scores: F32, known: Sequence[int], models: int) -> F32:
    """Input of the forests: dense features, scores, and one column per known model."""
    width = dense.shape[1] + scores.shape[1]
    rows = np.zeros((len(dense), width + models), dtype=np.float32)
    rows[:, : dense.shape[1]] = dense
    rows[:, dense.shape[1] : width] = scores
    at = np.asarray(known, dtype=np.int64)
    seen = np.flatnonzero(at >= 0)
    rows[seen, width + at[seen]] = 1.0
    return rows


def row_names(heads: Sequence[str], models: Sequence[str]) -> list[str]:
    """Names of the forests' inputs, as `assemble` orders them."""
    return [*DENSE_NAMES, *(f"text: {head}" for head in heads), *(f"model: {m}" for m in models)]
