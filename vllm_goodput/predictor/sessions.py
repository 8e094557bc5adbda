# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Output lengths so far in each agent session."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

LATEST = 4
MAX_RESIDUAL = 3.0  # of the log length; a single outlier moves the mean by no more


def bounded(residual: float) -> float:
    """A residual of the log length as it may enter a running mean."""
    return min(MAX_RESIDUAL, max(-MAX_RESIDUAL, residual))


class SessionLengths:
    """Running figures of one session's output lengths, in natural logarithms of tokens.

    Attributes:
        count: finished turns.
        latest: the last LATEST log lengths, oldest first.
        total: sum of all log lengths.
        high, low: largest and smallest log length.
        context_len: prompt and output of the last turn, tokens; 0 if not known.
        residual: running mean of (log length - predicted median).
    """

    __slots__ = ("context_len", "count", "high", "latest", "low", "residual", "square", "total")

    def __init__(self) -> None:
        self.count = 0
        self.latest: list[float] = []
        self.total = 0.0
        self.square = 0.0
        self.high = -math.inf
        self.low = math.inf
        self.context_len = 0
        self.residual = 0.0

    @classmethod
    def of(cls, lengths: Iterable[float]) -> SessionLengths:
        """Figures of known lengths, tokens, oldest first."""
        made = cls()
        for length in lengths:
            made.add(0, length)
        return made

    def add(self, prompt_len: int, output_len: float, residual: float = 0.0) -> None:
        """A turn finished."""
        log_len = math.log(max(1.0, output_len))
        self.count += 1
        self.latest = [*self.latest[1 - LATEST :], log_len]
        self.total += log_len
        self.square += log_len * log_len
        self.high = max(self.high, log_len)
        self.low = min(self.low, log_len)
        self.context_len = int(prompt_len + output_len) if prompt_len else 0
        if math.isfinite(residual):
            self.residual += (bounded(residual) - self.residual) / self.count

    @property
    def std(self) -> float:
        """Standard deviation of the log lengths; NaN for fewer than two."""
        if self.count < 2:
            return math.nan
        mean = self.total / self.count
        return math.sqrt(max(0.0, self.square / self.count - mean * mean))


class Sessions:
    """The most recently active sessions.

    Args:
        max_sessions: how many are remembered.
    """

    def __init__(self, max_sessions: int = 100_000) -> None:
        self._max = max_sessions
        self._open: OrderedDict[str, SessionLengths] = OrderedDict()

    def get(self, session: str | None) -> SessionLengths | None:
        """Lengths so far; None for an unknown session."""
        return self._open.get(session) if session else None

    def add(
        self, session: str | None, prompt_len: int, output_len: int, residual: float = 0.0
    ) -> None:
        """A turn of the session finished."""
        if not session:
            return
        lengths = self._open.get(session)
        if lengths is None:
            lengths = self._open[session] = SessionLengths()
            if len(self._open) > self._max:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(session)
        lengths.add(prompt_len, output_len, residual)
