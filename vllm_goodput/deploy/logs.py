# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A child's output: read by a thread, prefixed, written to a bounded file, its end kept in memory.

The thread always drains the pipe. A file that cannot be written (disk full, directory gone) is
reported once, loses the lines of that time, and is tried again with the next ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime
from io import FileIO
from pathlib import Path

MAX_LOG_BYTES = 64 << 20
TAIL_LINES = 50
# A longer line is cut into several.
MAX_LINE_BYTES = 16 << 10
_CHUNK_BYTES = 64 << 10
_LINE_END = re.compile(rb"[\r\n]+")


class LogFile:
    """Appends to `path`; beyond `max_bytes` the file becomes `<path>.1`, replacing an older one.

    Args:
        path: the log.
        warn: gets one line when writing fails for the first time.
        max_bytes: size at which a new file is begun, bytes.
    """

    def __init__(
        self, path: Path, warn: Callable[[str], None], max_bytes: int = MAX_LOG_BYTES
    ) -> None:
        self.path = path
        self._warn: Callable[[str], None] | None = warn
        self._max_bytes = max_bytes
        self._file: FileIO | None = None
        self._size = 0

    def write(self, data: bytes) -> None:
        """Append `data`; never raises OSError."""
        try:
            file = self._file or self._open()
            if self._size and self._size + len(data) > self._max_bytes:
                file = self._rotate()
            self._size += file.write(data)
        except OSError as error:
            if self._warn is not None:
                self._warn(f"log {self.path} cannot be written: {error.strerror}; lines are lost")
                self._warn = None

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._size = os.fstat(self._file.fileno()).st_size
        return self._file

    def _rotate(self) -> FileIO:
        self.close()
        os.replace(self.path, f"{self.path}.1")
        return self._open()


class LogPump(threading.Thread):
    """Copies a pipe to a LogFile until its last writer is gone.

    Args:
        fd: the read end; closed by the thread.
        name: put in front of each line, after the time.
        file: where lines go.
        done: called from the thread at the end.
    """

    def __init__(self, fd: int, name: str, file: LogFile, done: Callable[[], None]) -> None:
        super().__init__(name=f"log-{name}", daemon=True)
        self._fd = fd
        self._label = name
        self._file = file
        self._done = done
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def tail(self) -> list[str]:
        """The last lines, without prefix."""
        return list(self._tail.copy())

    def run(self) -> None:
        """Body of the thread."""
        rest = b""
        while chunk := os.read(self._fd, _CHUNK_BYTES):
            *lines, rest = _LINE_END.split(rest + chunk)
            while len(rest) > MAX_LINE_BYTES:
                lines.append(rest[:MAX_LINE_BYTES])
                rest = rest[MAX_LINE_BYTES:]
            self._take(lines)
        self._take([rest])
        os.close(self._fd)
        self._file.close()
        self._done()

    def note(self, text: str) -> None:
        """Write a line of our own; only before the thread is started."""
        self._file.write(self._prefixed([text.encode()]))

    def _take(self, lines: list[bytes]) -> None:
        lines = [line for line in lines if line]
        self._tail.extend(line.decode(errors="replace") for line in lines)
        if lines:
            self._file.write(self._prefixed(lines))

    def _prefixed(self, lines: list[bytes]) -> bytes:
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")
        prefix = f"{now} {self._label} | ".encode()
        return b"".join(prefix + line + b"\n" for line in lines)
