# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Reads training logs back as examples."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from vllm_goodput.errors import DataError
from vllm_goodput.predictor.dataset import Examples
from vllm_goodput.predictor.features import DENSE_NAMES, FEATURE_VERSION, GRAM_COLUMNS, Features
from vllm_goodput.predictor.view import is_length


def rotated(path: Path) -> Path:
    """Where a log goes when it is full."""
    return path.with_name(path.name + ".1")


def read_log(
    paths: Iterable[Path], progress: Callable[[int], None] = lambda rows: None
) -> Examples:
    """Examples from training logs, each with the rotated one beside it if there is one.

    A line that was cut short at the end of a file is skipped. Sessions and first prompts are only recognised within
    one run of the gateway.

    Args:
        paths: the logs.
        progress: called with the number of rows read so far.

    Raises:
        DataError: a file or line is unusable; says which.
    """
    files: dict[Path, None] = {}  # in order, each once
    for path in paths:
        if not path.name or path.is_dir():
            raise DataError(f"{str(path)!r} is a folder; name the training log itself")
        if rotated(path).exists():
            files[rotated(path)] = None
        files[path] = None
    reader = _Reader()
    for file in files:
        for row, where in _rows(file):
            reader.add(row, where)
            if reader.count % 1000 == 0:
                progress(reader.count)
    if not reader.count:
        raise DataError(f"no requests in {', '.join(map(str, files)) or 'no training logs'}")
    return reader.examples([file.name for file in files])


class _Reader:
    """Gathers rows in flat arrays: a log may hold many."""

    def __init__(self) -> None:
        self.count = 0
        self._dense = array("f")
        self._ends = array("q", [0])
        self._indices = array("i")
        self._weights = array("f")
        self._lengths = array("d")
        self._tasks: list[str] = []
        self._models: list[str] = []
        self._sessions: dict[str, int] = {}
        self._firsts: dict[str, int] = {}
        self._session = array("q")
        self._group: list[int] = []  # per session: all turns of one go together

    def add(self, row: dict[str, Any], where: str) -> None:
        """Take a row.

        Raises:
            DataError: it is not as it should be.
        """
        if row.get("goodput_features") != FEATURE_VERSION:
            raise DataError(
                f"{where}: written with feature version {row.get('goodput_features')!r}, this is version"
                f" {FEATURE_VERSION}; collect it again with this version of vllm-goodput"
            )
        for name in ("task", "model", "session", "first"):
            _expect(isinstance(row.get(name), str), where, name, "a string")
        _expect(is_length(row.get("output_len")), where, "output_len", "a number of tokens")
        dense = row.get("dense")
        _expect(
            isinstance(dense, list)
            and len(dense) == len(DENSE_NAMES)
            and all(x is None or _is_number(x) for x in dense),
            where,
            "dense",
            f"a list of {len(DENSE_NAMES)} numbers",
        )
        _expect(_are_grams(row.get("grams")), where, "grams", "a list of [weight, columns]")
        self._dense.extend(math.nan if x is None else x for x in row["dense"])
        for weight, columns in row["grams"]:
            self._indices.extend(columns)
            self._weights.extend([weight] * len(columns))
        self._ends.append(len(self._indices))
        self._lengths.append(row["output_len"])
        self._tasks.append(row["task"])
        self._models.append(row["model"])
        session = self._sessions.setdefault(row["session"], len(self._sessions))
        first = self._firsts.setdefault(row["first"], len(self._firsts))
        if session == len(self._group):
            self._group.append(first)
        self._session.append(session)
        self.count += 1

    def examples(self, source: list[str]) -> Examples:
        """All rows taken."""
        session = np.array(self._session, dtype=np.int64)
        features = Features(
            np.array(self._dense, dtype=np.float32).reshape(self.count, len(DENSE_NAMES)),
            np.array(self._ends, dtype=np.int64),
            np.array(self._indices, dtype=np.int32),
            np.array(self._weights, dtype=np.float32),
        )
        return Examples(
            features,
            np.array(self._lengths, dtype=np.float64),
            np.array(self._tasks),
            np.array(self._models),
            session,
            np.array(self._group, dtype=np.int64)[session],
            source,
        )


def _rows(file: Path) -> Iterable[tuple[dict[str, Any], str]]:
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                where = f"{file}:{number}"
                try:
                    row = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    if not line.endswith(b"\n"):
                        return  # the writer was interrupted
                    raise DataError(f"{where}: not JSON ({error})") from None
                _expect(isinstance(row, dict), where, "the line", "a JSON object")
                yield row, where
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None


def _expect(valid: bool, where: str, name: str, requirement: str) -> None:
    if not valid:
        raise DataError(f"{where}: {name} must be {requirement}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 1e30


def _are_grams(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and _is_number(pair[0])
        and isinstance(pair[1], list)
        and all(isinstance(c, int) and 0 <= c < GRAM_COLUMNS for c in pair[1])
        for pair in value
    )
