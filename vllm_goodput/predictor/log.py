# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A log of finished requests to train from: features and lengths as JSON lines, no text.

Texts are in it as hashed n-grams only. That is no encryption: who guesses a text can check the guess.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import queue
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from vllm_goodput.errors import DataError
from vllm_goodput.predictor.features import FEATURE_VERSION, Features
from vllm_goodput.predictor.guard import Seldom
from vllm_goodput.predictor.learned import MoEPredictor, Predicted
from vllm_goodput.predictor.log_reader import read_log, rotated
from vllm_goodput.predictor.view import FIRST_HEAD, RequestView
from vllm_goodput.slo import MAX_LABEL_LEN

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution
    from vllm_goodput.predictor.model import MoEModel
    from vllm_goodput.router.types import RequestInfo

__all__ = ["LoggingPredictor", "TrainingLog", "opening", "read_log"]

log = logging.getLogger(__name__)

# A line's first bytes; what begins otherwise is another file, which must not be touched.
MARK = b'{"goodput_features":'
# Finished requests that wait to be written; more are dropped.
MAX_WAITING = 1000
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class _Record:
    info: RequestInfo
    view: RequestView
    features: Features
    output_len: int


class TrainingLog:
    """Appends one line per finished request; a thread writes them. What cannot be written is dropped.

    Args:
        path: the file. Half full (by `max_mb`) it is moved to `path.1`, over the one before it.
        max_mb: bound of both together, MiB.
        dropped: told of each request that is not written, from any thread.

    Raises:
        DataError: the file cannot be written.
    """

    def __init__(
        self, path: Path, max_mb: float, dropped: Callable[[], None] = lambda: None
    ) -> None:
        self._path = path
        self._max_bytes = int(max_mb * 2**20 / 2)
        self._dropped = dropped
        self._warn = Seldom()
        self._salt = secrets.token_bytes(16)
        self._fd = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise DataError(f"cannot write the training log {path}: {error.strerror}") from None
        self._queue: queue.Queue[_Record | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._work, name="training-log", daemon=True)
        self._thread.start()

    def add(self, info: RequestInfo, features: Features, output_len: int) -> None:
        """A request finished; returns at once.

        Args:
            info: with its view; it is not kept for long.
            features: one row, as they were on its arrival.
            output_len: tokens.
        """
        if info.view is None:
            return
        try:
            self._queue.put_nowait(_Record(info, info.view, features, output_len))
        except queue.Full:
            self._drop("they come faster than they can be written")

    def close(self) -> None:
        """Write what waits, then end; blocks, for `CLOSE_TIMEOUT_S` at most."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_TIMEOUT_S)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        while (record := self._queue.get()) is not None:
            try:
                self._write(self._line(record))
            except OSError as error:
                self._close_file()
                self._drop(error.strerror or type(error).__name__)
            except Exception as error:  # noqa: BLE001 (a line is never worth the thread)
                self._drop(type(error).__name__)
        self._close_file()

    def _drop(self, why: str) -> None:
        self._dropped()
        if self._warn.now():
            log.warning("requests are missing from the training log %s: %s", self._path, why)

    def _line(self, record: _Record) -> bytes:
        info, view, features = record.info, record.view, record.features
        session = f"session {info.session}" if info.session else f"request {info.request_id}"
        row = {
            "goodput_features": FEATURE_VERSION,
            "task": _label(info.task),
            "model": _label(view.model),
            "output_len": record.output_len,
            "cut": info.max_tokens is not None and record.output_len >= info.max_tokens,
            "session": self._hash(session),
            "first": self._hash(f"first {opening(view)}"),
            "dense": np.round(features.dense[0], 5),
            "grams": _by_weight(features),
        }
        return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"

    def _hash(self, text: str) -> str:
        """64 bits; they differ from one start of the process to the next."""
        data = text.encode("utf-8", "replace")
        return hashlib.blake2b(data, digest_size=8, key=self._salt).hexdigest()

    def _write(self, line: bytes) -> None:
        if len(line) > self._max_bytes:
            self._drop("a line is larger than max_mb allows")
            return
        if self._fd >= 0 and not self._in_place():
            self._close_file()  # moved or removed by somebody else: begin anew where it should be
        if self._fd < 0:
            self._open()
        size = os.fstat(self._fd).st_size
        if size + len(line) > self._max_bytes:
            self._rotate()
            size = 0
        if os.write(self._fd, line) < len(line):  # the disk is full
            os.ftruncate(self._fd, size)
            raise OSError(0, "no space left")

    def _rotate(self) -> None:
        self._close_file()
        with contextlib.suppress(FileNotFoundError):  # taken away by somebody else
            self._path.replace(rotated(self._path))
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        head = os.pread(self._fd, len(MARK), 0)
        if head not in (b"", MARK):
            self._close_file()
            raise OSError(0, "there is another file, not a training log")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._close_file()
            raise OSError(0, "another process is writing to it") from None
        _end_at_a_whole_line(self._fd)

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LoggingPredictor:
    """A learned predictor whose finished requests are logged.

    Args:
        inner: must keep features.
        log: where to.
    """

    def __init__(self, inner: MoEPredictor, log: TrainingLog) -> None:
        self._inner = inner
        self._log = log

    def predict(self, info: RequestInfo) -> Predicted:
        """See LengthPredictor."""
        return self._inner.predict(info)

    def predict_batch(self, infos: Sequence[RequestInfo]) -> list[Predicted]:
        """See LengthPredictor."""
        return self._inner.predict_batch(infos)

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """See LengthPredictor."""
        if isinstance(predicted, Predicted) and predicted.features is not None and output_len >= 1:
            self._log.add(info, Features(*predicted.features), output_len)
        self._inner.observe(info, output_len, predicted)

    def swap(self, model: MoEModel) -> None:
        """See MoEPredictor."""
        self._inner.swap(model)


def opening(view: RequestView) -> str:
    """The window of the first prompt of a view's conversation: the same in each of its turns."""
    if view.turn or not view.chat:
        return view.first or view.last[:FIRST_HEAD]
    if not view.first:
        return view.last[:FIRST_HEAD]
    # view.py shares the window between instructions and message once there is an answer.
    share = max(FIRST_HEAD // 2, FIRST_HEAD - view.last_chars)
    return f"{view.first[:share]}\n{view.last}"[:FIRST_HEAD]


def _by_weight(features: Features) -> list[tuple[float, list[int]]]:
    """Columns of the n-grams, gathered by weight: there are few different ones, so that this is short."""
    columns: dict[float, list[int]] = defaultdict(list)
    for column, weight in zip(features.indices.tolist(), features.weights.tolist(), strict=True):
        columns[round(weight, 7)].append(column)
    return list(columns.items())


def _label(text: str | None) -> str:
    # Header values may hold bytes that are not UTF-8.
    return (text or "")[:MAX_LABEL_LEN].encode("utf-8", "replace").decode("utf-8")


def _end_at_a_whole_line(fd: int) -> None:
    """Cut off what a crash left behind the last line break, lest the next line be joined to it."""
    end = os.fstat(fd).st_size
    while end:
        begin = max(0, end - 2**16)
        at = os.pread(fd, end - begin, begin).rfind(b"\n")
        if at >= 0:
            end = begin + at + 1
            break
        end = begin
    os.ftruncate(fd, end)
