# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What a deployment tells its user: a live table on a terminal, else lines, or log records."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

State = Literal["waiting", "starting", "healthy", "failed", "stopped"]


@dataclass
class Status:
    """Progress of one process while a deployment starts."""

    name: str
    device: str
    state: State = "waiting"
    began_s: float = field(default=0.0, repr=False)
    ended_s: float | None = field(default=None, repr=False)

    def enter(self, state: State) -> None:
        """Change the state, now."""
        self.state = state
        if state == "starting":
            self.began_s, self.ended_s = time.monotonic(), None
        else:
            self.ended_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was started, until it was healthy or failed."""
        if self.state == "waiting":
            return 0.0
        return (self.ended_s or time.monotonic()) - self.began_s


class Reporter(Protocol):
    """Receives events in the event loop's thread; must neither block nor raise."""

    def begin(self, statuses: Sequence[Status]) -> None:
        """Starting begins; the statuses change in place."""

    def tick(self, changed: Status | None = None) -> None:
        """A status changed, or (None) a little time has passed."""

    def end(self) -> None:
        """Starting has ended, well or not."""

    def line(self, text: str) -> None:
        """News."""

    def problem(self, text: str, tail: Sequence[str] = ()) -> None:
        """Something went wrong; `tail` holds the process's last lines."""


class LogReporter:
    """Log records of `vllm_goodput.deploy`; for use from Python."""

    def __init__(self) -> None:
        self._log = logging.getLogger("vllm_goodput.deploy")

    def begin(self, statuses: Sequence[Status]) -> None:
        """Nothing to say yet."""

    def tick(self, changed: Status | None = None) -> None:
        """Log a change."""
        if changed is not None:
            self._log.info("%s: %s", changed.name, changed.state)

    def end(self) -> None:
        """Nothing to clean up."""

    def line(self, text: str) -> None:
        """Log at INFO."""
        self._log.info("%s", text)

    def problem(self, text: str, tail: Sequence[str] = ()) -> None:
        """Log at ERROR, with the last lines."""
        self._log.error("%s", "\n".join([text, *(f"    {line}" for line in tail)]))


class PlainReporter:
    """Lines: news on `out`, problems on `err`; falls silent when a stream's reader has gone."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err

    def begin(self, statuses: Sequence[Status]) -> None:
        """Nothing to say yet."""

    def tick(self, changed: Status | None = None) -> None:
        """One line per change."""
        if changed is None or changed.state in ("waiting", "stopped"):
            return
        after = "" if changed.state == "starting" else f" after {changed.elapsed_s:.1f} s"
        self.line(f"{changed.name}: {changed.state}{after} [{changed.device}]")

    def end(self) -> None:
        """Nothing to clean up."""

    def line(self, text: str) -> None:
        """Print to `out`."""
        _print(self._out, text)

    def problem(self, text: str, tail: Sequence[str] = ()) -> None:
        """Print to `err`, with the last lines indented."""
        _print(self._err, "\n".join([text, *(f"    {line}" for line in tail)]))


class LiveReporter(PlainReporter):
    """A table that is redrawn while starting; otherwise as PlainReporter."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live: Live | None = None
        self._statuses: Sequence[Status] = ()

    def begin(self, statuses: Sequence[Status]) -> None:
        """Draw the table."""
        self._statuses = statuses
        self._live = Live(self._table(), console=self._console, auto_refresh=False)
        self._live.start()

    def tick(self, changed: Status | None = None) -> None:
        """Redraw."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def end(self) -> None:
        """Leave the last table on screen."""
        if self._live is not None:
            self.tick()
            self._live.stop()
            self._live = None

    def line(self, text: str) -> None:
        """Print, above the table while there is one."""
        if self._live is not None:
            self._console.print(text, markup=False, highlight=False)
        else:
            super().line(text)

    def problem(self, text: str, tail: Sequence[str] = ()) -> None:
        """Print to stderr; above the table while there is one."""
        if self._live is not None:
            self.line("\n".join([text, *(f"    {line}" for line in tail)]))
        else:
            super().problem(text, tail)

    def _table(self) -> Table:
        table = Table("name", "device", "state", "seconds", box=None, pad_edge=False)
        for status in self._statuses:
            seconds = "" if status.state == "waiting" else f"{status.elapsed_s:.0f}"
            table.add_row(status.name, status.device, status.state, seconds)
        return table


def make_reporter() -> Reporter:
    """A live table if stdout is a terminal, lines otherwise."""
    console = Console()
    return (
        LiveReporter(console)
        if console.is_terminal and not console.is_dumb_terminal
        else (PlainReporter())
    )


def _print(stream: TextIO, text: str) -> None:
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):  # the reader (head, less) has gone: a deployment outlives it
        _silence(stream)


def _silence(stream: TextIO) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        return
