# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Training examples: finished requests with their features, from (prompt, output) pairs or from a collected log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from vllm_goodput.errors import DataError
from vllm_goodput.predictor.features import Features, extract, stack
from vllm_goodput.predictor.sessions import SessionLengths
from vllm_goodput.predictor.view import (
    ANSWER_HEAD,
    ANSWER_TAIL,
    FIRST_HEAD,
    FIRST_TAIL,
    LAST_HEAD,
    LAST_TAIL,
    ROLES,
    RequestView,
    is_length,
    window,
)
from vllm_goodput.slo import MAX_LABEL_LEN

_SPACE = re.compile(r"\s+")
_ROLE = re.compile(r"\[(\w+)\]")


@dataclass(frozen=True)
class Examples:
    """n finished requests.

    Args:
        features: what was known on arrival.
        output_len: float64 [n], tokens.
        task: declared task types; "" where none.
        model: model names.
        session: int64 [n]; equal numbers are the same session.
        group: int64 [n]; sessions that begin with the same prompt share a group. Splits keep groups whole.
        source: where the rows come from.
    """

    features: Features
    output_len: npt.NDArray[np.float64]
    task: npt.NDArray[np.str_]
    model: npt.NDArray[np.str_]
    session: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    source: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.output_len)

    @property
    def log_len(self) -> npt.NDArray[np.float64]:
        """Natural logarithm of the output length."""
        return np.asarray(np.log(np.maximum(1.0, self.output_len)))

    def take(self, rows: npt.NDArray[Any]) -> Examples:
        """The examples at these positions (or where a mask holds)."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        f = self.features
        counts = np.diff(f.ends)[rows]
        begins = np.repeat(f.ends[rows] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        at = begins + np.arange(counts.sum())
        features = Features(
            f.dense[rows],
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            f.indices[at],
            f.weights[at],
        )
        return Examples(
            features,
            self.output_len[rows],
            self.task[rows],
            self.model[rows],
            self.session[rows],
            self.group[rows],
            self.source,
        )


def concat(parts: Sequence[Examples]) -> Examples:
    """All examples together; sessions and groups of different parts stay apart."""

    def apart(arrays: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
        shift, moved = 0, []
        for array in arrays:
            moved.append(array + shift)
            shift += int(array.max(initial=-1)) + 1
        return np.concatenate(moved)

    return Examples(
        stack([p.features for p in parts]),
        np.concatenate([p.output_len for p in parts]),
        np.concatenate([p.task for p in parts]),
        np.concatenate([p.model for p in parts]),
        apart([p.session for p in parts]),
        apart([p.group for p in parts]),
        [source for p in parts for source in p.source],
    )


Session = list[dict[str, Any]]


def read_pairs(
    paths: Iterable[Path], progress: Callable[[int], None] = lambda rows: None
) -> Examples:
    """Examples from JSONL files of (prompt, output) pairs; see `read_sessions`.

    Raises:
        DataError: a file or line is unusable; says which.
    """
    return from_sessions(*read_sessions(paths, progress))


def read_sessions(
    paths: Iterable[Path], progress: Callable[[int], None] = lambda rows: None
) -> tuple[list[Session], list[str]]:
    """The rows of JSONL files of (prompt, output) pairs, by session and in turn order; and the files' names.

    A row has `task`, `model`, `session`, `turn`, `prompt`, `prompt_tokens`, `output_tokens`, and may have `output` and
    `prompt_kind`: "full", the whole input (default), or "delta", what was added since the session's previous turn.

    Args:
        paths: the files, or folders of *.jsonl files.
        progress: called with the number of rows read so far.

    Raises:
        DataError: a file or line is unusable; says which.
    """
    files = pair_files(paths)
    sessions: dict[tuple[str, str, str], Session] = defaultdict(list)
    count = 0
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            row = _pair(line, f"{file}:{number}")
            sessions[str(row.get("source")), row["task"], str(row["session"])].append(row)
            count += 1
            if count % 1000 == 0:
                progress(count)
    if not count:
        raise DataError(
            f"no pairs in {', '.join(map(str, paths))}: no *.jsonl files, or empty ones"
        )
    for turns in sessions.values():
        turns.sort(key=lambda row: row["turn"])
    return list(sessions.values()), [file.name for file in files]


def pair_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves where folders of them may be named."""
    return [
        file
        for path in paths
        for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])
    ]


def _lines(file: Path) -> Iterable[bytes]:
    try:
        with file.open("rb") as stream:
            yield from stream
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None


def _pair(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object is expected")
    for name, kind in (("task", str), ("model", str), ("prompt", str)):
        if not isinstance(row.get(name), kind):
            raise DataError(f"{where}: {name} must be a string")
    row.setdefault("session", where)
    row.setdefault("turn", 0)
    if not isinstance(row["turn"], int):
        raise DataError(f"{where}: turn must be a whole number")
    for name in ("prompt_tokens", "output_tokens"):
        if not is_length(row.get(name)) and row.get(name) != 0:
            raise DataError(f"{where}: {name} must be a number of tokens")
    return row


def from_sessions(sessions: Iterable[Session], source: list[str]) -> Examples:
    """Examples from the rows of sessions, each in the order of its turns."""
    rows: list[dict[str, Any]] = []
    session_ids: list[int] = []
    groups: list[int] = []
    first_prompts: dict[str, int] = {}
    features: list[Features] = []
    for number, turns in enumerate(sessions):
        key = _SPACE.sub(" ", turns[0]["prompt"].replace("\\n", " ")).strip().lower()
        group = first_prompts.setdefault(key, len(first_prompts))
        lengths = SessionLengths()
        prompts: list[str] = []
        for row in turns:
            view = pair_view(row, turns[0], prompts, rows[-1] if prompts else None)
            # Taken now, before the session's figures move on.
            features.append(extract([(view, lengths)]))
            lengths.add(row["prompt_tokens"], row["output_tokens"])
            prompts.append(row["prompt"])
            rows.append(row)
            session_ids.append(number)
            groups.append(group)
    return Examples(
        stack(features),
        np.array([max(1, row["output_tokens"]) for row in rows], dtype=np.float64),
        # numpy gives every name the room of the longest.
        np.array([row["task"][:MAX_LABEL_LEN] for row in rows]),
        np.array([row["model"][:MAX_LABEL_LEN] for row in rows]),
        np.array(session_ids, dtype=np.int64),
        np.array(groups, dtype=np.int64),
        source,
    )


def pair_view(
    row: dict[str, Any],
    opening: dict[str, Any],
    prompts: list[str],
    previous: dict[str, Any] | None,
) -> RequestView:
    """What a predictor would have seen of a row on its arrival.

    Args:
        row: the pair.
        opening: the first row of its session.
        prompts: of the session's earlier rows.
        previous: the row before it.
    """
    text = row["prompt"]
    whole = row.get("prompt_kind", "full") == "full" or previous is None
    first = "" if whole else opening["prompt"]
    answer = "" if whole or previous is None else str(previous.get("output") or "")
    tag = _ROLE.match(text)
    role = tag.group(1) if tag and tag.group(1) in ROLES else "user"
    return RequestView(
        model=row["model"],
        prompt_len=int(row["prompt_tokens"]),
        last=window(text, LAST_HEAD, LAST_TAIL),
        first=window(first, FIRST_HEAD, FIRST_TAIL),
        answer=window(answer, ANSWER_HEAD, ANSWER_TAIL),
        last_chars=len(text),
        first_chars=len(first),
        answer_chars=len(answer),
        turn=len(prompts),
        repeats=text in prompts,
        role=ROLES.index(role),
    )
