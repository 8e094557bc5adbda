# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""XGBoost's trees as flat arrays for csrc/forest.cpp, which evaluates them without its overhead per call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from vllm_goodput._C import Forest


@dataclass(frozen=True)
class Trees:
    """Node arrays of a forest; see Forest in _C.

    Args:
        feature: int16 [nodes], -1 for a leaf.
        threshold: float32 [nodes].
        left: int32 [nodes].
        nan_left: bool [nodes].
        roots: int32 [trees].
        leaves: float16 [leaves, outputs].
        base: float32 [outputs].
        features: number of inputs.
    """

    feature: npt.NDArray[np.int16]
    threshold: npt.NDArray[np.float32]
    left: npt.NDArray[np.int32]
    nan_left: npt.NDArray[np.bool_]
    roots: npt.NDArray[np.int32]
    leaves: npt.NDArray[np.float16]
    base: npt.NDArray[np.float32]
    features: int

    def forest(self) -> Forest:
        """Ready to predict.

        Raises:
            ValueError: an index leads outside.
        """
        return Forest(
            self.feature,
            self.threshold,
            self.left,
            self.nan_left,
            self.roots,
            self.leaves.astype(np.float32),
            self.base,
            self.features,
        )


def from_booster(booster: Any) -> Trees:
    """The trees of a booster trained with multi_strategy="multi_output_tree" (one vector per leaf)."""
    learner = orjson.loads(bytes(booster.save_raw("json")))["learner"]
    base = np.array(orjson.loads(learner["learner_model_param"]["base_score"]), dtype=np.float32)
    parts: dict[str, list[Any]] = {
        name: [] for name in ("feature", "threshold", "left", "nan_left", "leaves")
    }
    roots: list[int] = []
    nodes = leaves = 0
    for tree in learner["gradient_booster"]["model"]["trees"]:
        part = _flatten(tree, len(base), nodes, leaves)
        roots.append(nodes)
        nodes += len(part["feature"])
        leaves += len(part["leaves"])
        for name, values in part.items():
            parts[name].append(values)
    return Trees(
        np.concatenate(parts["feature"]).astype(np.int16),
        np.concatenate(parts["threshold"]).astype(np.float32),
        np.concatenate(parts["left"]).astype(np.int32),
        np.concatenate(parts["nan_left"]).astype(bool),
        np.array(roots, dtype=np.int32),
        np.concatenate(parts["leaves"]).astype(np.float16),
        base,
        int(learner["learner_model_param"]["num_feature"]),
    )


def _flatten(
    tree: dict[str, Any], outputs: int, node_offset: int, leaf_offset: int
) -> dict[str, npt.NDArray[Any]]:
    """One tree, its nodes renumbered so that a right child follows its left one."""
    left, right = tree["left_children"], tree["right_children"]
    order = [0]
    for node in order:
        if left[node] >= 0:
            order += [left[node], right[node]]
    place = {node: i for i, node in enumerate(order)}
    at = np.array(order)
    is_leaf = np.array(left)[at] < 0
    # A leaf keeps the number of its values where a split has its right child.
    target = [
        leaf_offset + right[node] if left[node] < 0 else node_offset + place[left[node]]
        for node in order
    ]
    return {
        "feature": np.where(is_leaf, -1, np.array(tree["split_indices"])[at]),
        "threshold": np.where(is_leaf, 0.0, np.array(tree["split_conditions"])[at]),
        "left": np.array(target),
        "nan_left": np.array(tree["default_left"], dtype=bool)[at],
        "leaves": np.array(tree["leaf_weights"], dtype=np.float32).reshape(-1, outputs),
    }
