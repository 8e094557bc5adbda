# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From a request's view to the numbers that the model is fed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_goodput import _C
from vllm_goodput.predictor.sessions import SessionLengths
from vllm_goodput.predictor.view import RequestView

# A model file says which version of these features it was trained on; raise it whenever their meaning or order changes,
# in view.py's windows, csrc/request_features.cpp, csrc/text_stats.cpp or csrc/text_grams.cpp.
FEATURE_VERSION = 1

# Names of the dense features, in the order of csrc/request_features.cpp.
NUMBERS = (
    "log prompt_len",
    "log last_chars",
    "log first_chars",
    "log answer_chars",
    "turn",
    "log tools",
    "tool_results",
    "form",
    "log max_tokens",
    "stops",
    "chat",
    "role",
    "known lengths",
    "log length -1",
    "log length -2",
    "log length -3",
    "log length -4",
    "mean log length",
    "max log length",
    "min log length",
    "std log length",
    "log growth",
    "repeats",
    "same length twice",
)
# Of each window, in the order of csrc/text_stats.cpp.
STATS = (
    "log bytes",
    "log words",
    "log numbers",
    "log digits",
    "log lines",
    "log longest line",
    "digit share",
    "upper share",
    "space share",
    "symbol share",
    "non-ASCII share",
    "log ?",
    "log .",
    "log ,",
    "log :",
    "log (",
    "log [{",
    "log quotes",
    "log `#",
    "log =_",
    "log leading space",
    "log trailing space",
    "first byte",
    "last byte",
)
WINDOWS = ("last", "first", "answer")
GRAM_COLUMNS = len(WINDOWS) * _C.TEXT_BUCKETS
DENSE_NAMES = (*NUMBERS, *(f"{w}: {s}" for w in WINDOWS for s in STATS))
assert (len(NUMBERS), len(STATS)) == (_C.NUMBERS, _C.TEXT_STATS)


@dataclass(frozen=True)
class Features:
    """Features of n requests.

    Args:
        dense: float32 [n, len(DENSE_NAMES)], NaN where not known.
        ends, indices, weights: hashed n-grams as CSR rows over GRAM_COLUMNS.
    """

    dense: npt.NDArray[np.float32]
    ends: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.dense)

    def row(self, index: int) -> Features:
        """A copy of one request's features, which does not keep the others in memory."""
        begin, end = (int(self.ends[index]), int(self.ends[index + 1]))
        return Features(
            self.dense[index : index + 1].copy(),
            np.array([0, end - begin], dtype=np.int64),
            self.indices[begin:end].copy(),
            self.weights[begin:end].copy(),
        )


def stack(parts: Sequence[Features]) -> Features:
    """The rows of all parts, one after the other."""
    shifts = np.cumsum([0, *(len(part.indices) for part in parts)])
    ends = [part.ends[1:] + shift for part, shift in zip(parts, shifts, strict=False)]
    return Features(
        np.concatenate([part.dense for part in parts]),
        np.concatenate([[0], *ends]).astype(np.int64),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )


def extract(requests: Sequence[tuple[RequestView, SessionLengths | None]]) -> Features:
    """Features of requests, each with the lengths so far of its session if known."""
    return Features(*_C.request_features(requests))
