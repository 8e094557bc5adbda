# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Recorded (prompt, output) pairs, as training examples and as the requests that a running predictor would meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vllm_goodput.errors import DataError
from vllm_goodput.predictor.dataset import Examples, from_sessions, pair_view, read_sessions
from vllm_goodput.router.types import RequestInfo


@dataclass(frozen=True)
class Pairs:
    """n finished requests.

    Args:
        examples: for training and for models that are fed with features.
        infos: the same requests for a `LengthPredictor`, which keeps account of sessions itself.
        inputs: int64 [n]; equal numbers are the same model with the same input, as far as the pairs show it.
    """

    examples: Examples
    infos: list[RequestInfo]
    inputs: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.infos)

    def take(self, rows: npt.NDArray[Any]) -> Pairs:
        """The requests at these positions (or where a mask holds)."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Pairs(self.examples.take(rows), [self.infos[i] for i in rows], self.inputs[rows])

    def shuffled(self, seed: int) -> Pairs:
        """Sessions in a random order, each one's turns together and in theirs."""
        names, index = np.unique(self.examples.session, return_inverse=True)
        place = np.random.default_rng(seed).permutation(len(names))
        return self.take(np.argsort(place[index], kind="stable"))

    def share(self, share: float, seed: int) -> Pairs:
        """A random part of the groups; a smaller one is contained in a larger one of the same seed."""
        names, index = np.unique(self.examples.group, return_inverse=True)
        place = np.random.default_rng(seed).permutation(len(names))
        return self.take(place[index] < share * len(names))


def read(path: Path) -> Pairs:
    """All pairs of a file or of a folder's *.jsonl files.

    Raises:
        DataError: there are none, or one is unusable.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; name a file or folder of pairs with --pairs")
    sessions, source = read_sessions([path])
    examples = from_sessions(sessions, source)
    infos: list[RequestInfo] = []
    inputs: list[int] = []
    numbers: dict[bytes, int] = {}
    for session, turns in enumerate(sessions):
        prompts: list[str] = []
        previous: dict[str, Any] | None = None
        for row, text in zip(turns, _inputs(turns), strict=True):
            view = pair_view(row, turns[0], prompts, previous)
            infos.append(
                RequestInfo(
                    request_id=str(len(infos)),
                    prompt_len=int(row["prompt_tokens"]),
                    arrival_s=0.0,
                    task=row["task"],
                    session=str(session),
                    model=row["model"],
                    view=view,
                )
            )
            inputs.append(numbers.setdefault(text, len(numbers)))
            prompts.append(row["prompt"])
            previous = row
    return Pairs(examples, infos, np.array(inputs, dtype=np.int64))


def _inputs(turns: Sequence[dict[str, Any]]) -> list[bytes]:
    """A digest of each turn's model and whole input."""
    history = b""
    found = []
    for row in turns:
        if row.get("prompt_kind", "full") == "full":
            history = b""
        # The number of tokens tells apart long prompts that were cut to the same text.
        model = f"{row['model']}\0{row['prompt_tokens']}\0".encode()
        prompt = row["prompt"].encode("utf-8", "replace")
        found.append(blake2b(model + history + prompt, digest_size=16).digest())
        output = str(row.get("output") or "").encode("utf-8", "replace")
        history = blake2b(history + prompt + b"\0" + output, digest_size=16).digest()
    return found
