# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Tiny trained length models, made in well under a second."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from vllm_goodput.predictor.dataset import Examples
from vllm_goodput.predictor.features import extract
from vllm_goodput.predictor.store import save
from vllm_goodput.predictor.training import Trained, TrainSettings, fit
from vllm_goodput.predictor.view import view_of

TINY = TrainSettings(folds=2, rounds=3, depth=2, min_rows=2, learning_rate=0.5, threads=1)


@cache
def trained(length: int) -> Trained:
    """A model of requests whose answers have about `length` tokens."""
    rng = np.random.default_rng(length)
    count = 48
    words = ["write", "a", "story", "query", "of", "rivers", "and", "tables"]
    texts = [" ".join(rng.choice(words, 12)) for _ in range(count)]
    views = [view_of({"model": "tiny", "prompt": text}, False, 12, None) for text in texts]
    numbers = np.arange(count, dtype=np.int64)
    return fit(
        Examples(
            extract([(view, None) for view in views]),
            length * np.exp(0.05 * rng.standard_normal(count)),
            np.array(["story"] * count),
            np.array(["tiny"] * count),
            numbers,
            numbers,
        ),
        TINY,
    )


def save_model(path: Path, length: int) -> str:
    """Write such a model to `path`; returns the path as text."""
    save(path, trained(length))
    return str(path)
