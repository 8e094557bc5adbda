# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From a request's view to the numbers that the model is fed with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vllm_goodput._C import TEXT_BUCKETS, TEXT_STATS, request_features
from vllm_goodput.predictor.sessions import SessionLengths
from vllm_goodput.predictor.view import RequestView

# A model file says which version of these features it was trained on; raise it whenever their meaning or order changes,
# in this file, in view.py's windows or in csrc/text_features.cpp.
FEATURE_VERSION = 1

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
GRAM_COLUMNS = len(WINDOWS) * TEXT_BUCKETS
DENSE_NAMES = (*NUMBERS, *(f"{w}: {s}" for w in WINDOWS for s in STATS))
assert len(STATS) == TEXT_STATS

_NAN = math.nan


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
    rows: list[tuple[list[float], tuple[str, ...]]] = [
        (_numbers(view, session), (view.last, view.first, view.answer))
        for view, session in requests
    ]
    return Features(*request_features(rows, len(NUMBERS), len(WINDOWS)))


def _numbers(view: RequestView, session: SessionLengths | None) -> list[float]:
    log1p = math.log1p
    if session is None or not session.count:
        session = SessionLengths.of(view.answer_lens) if view.answer_lens else None
    head = [
        log1p(view.prompt_len),
        log1p(view.last_chars),
        log1p(view.first_chars),
        log1p(view.answer_chars),
        max(view.turn, session.count if session else 0),
        log1p(view.tools),
        view.tool_results,
        view.form,
        math.log(view.max_tokens) if view.max_tokens else _NAN,
        view.stops,
        view.chat,
        view.role,
    ]
    if session is None:
        return [*head, 0, *[_NAN] * 9, view.repeats, _NAN]
    logs = session.latest
    count = session.count
    return [
        *head,
        count,
        logs[-1],
        logs[-2] if count > 1 else _NAN,
        logs[-3] if count > 2 else _NAN,
        logs[-4] if count > 3 else _NAN,
        session.total / count,
        session.high,
        session.low,
        session.std,
        log1p(max(0.0, view.prompt_len - session.context_len)) if session.context_len else _NAN,
        view.repeats,
        logs[-1] == logs[-2] if count > 1 else _NAN,
    ]
