# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The trained model: text heads, gate, experts and calibration, from features to quantiles of the log length.

scores  = n-grams · heads                    linear in the text; every head predicts a length or a task type
gate    = sigmoid(scores of the task heads)  what no task claims goes to the general expert
general = forest on (dense features, scores, model)
experts = forests on the same and the general expert's quantiles
output  = sum over experts of gate x (quantiles + the expert's calibration)

`csrc/mixture.*` computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vllm_goodput._C import Forest, Mixture
from vllm_goodput.predictor.features import DENSE_NAMES, Features

F32 = npt.NDArray[np.float32]


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
    """Weight of each task's expert: its claim, sigmoid(slope * score + offset) of the task's head, times `declared`.

    Claims of more than 1 in all are scaled down to it. A task that the caller declares has its own expert's `declared`
    and nothing of the others'. Very small weights count as none; the general expert has the rest.

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

    @cached_property
    def native(self) -> Mixture:
        """The same for C++.

        Raises:
            ValueError: shapes do not fit together.
        """
        return Mixture(
            models=self.models,
            tasks=self.gate.tasks,
            head_weights=self.heads.weights,
            head_bias=self.heads.bias,
            head_model_bias=self.heads.model_bias,
            gate_heads=self.gate.heads,
            gate_slope=self.gate.slope,
            gate_offset=self.gate.offset,
            declared=self.gate.declared,
            experts=self.experts,
            offsets=self.offsets,
        )

    def predict(
        self, features: Features, models: Sequence[str], tasks: Sequence[str | None]
    ) -> tuple[F32, F32]:
        """Quantiles of the natural log length, and the gate's weights.

        Args:
            features: of n requests.
            models: their model names.
            tasks: their declared task types; unknown ones and None leave it to the text.

        Returns:
            (float32 [n, levels], non-decreasing along the levels; float32 [n, tasks + 1], the general expert's weight
            last, of sum 1)

        Raises:
            ValueError: the model is broken.
        """
        return self.native.predict(
            features.dense, features.ends, features.indices, features.weights, models, tasks
        )


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
