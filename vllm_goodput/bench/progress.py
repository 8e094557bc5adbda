# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Progress of a replay: a bar on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vllm_goodput.bench.record import Record

BAR_PERIOD_S = 0.5
LINE_PERIOD_S = 10.0


class ReplayProgress:
    """An `Observer` that counts; inside `async with` it also shows the counts.

    Args:
        total: number of rows.
        console: where to show them.
        line_period_s: seconds between plain lines.
    """

    def __init__(self, total: int, console: Console, line_period_s: float = LINE_PERIOD_S) -> None:
        self._total = total
        self._console = console
        self._line_period_s = line_period_s
        self._sent = 0
        self._span_s = 0.0
        self._counts: Counter[str] = Counter()
        self._start_s = time.perf_counter()
        self._ticker: asyncio.Task[None] | None = None

    def sent(self) -> None:
        """A request was sent."""
        self._sent += 1
        self._span_s = time.perf_counter() - self._start_s

    def done(self, record: Record) -> None:
        """A request has ended."""
        self._counts[record.outcome] += 1

    def line(self) -> str:
        """The counts so far."""
        counts = self._counts
        # As in the report: per second of trace, so that waiting for the last answers does not lower it.
        elapsed_s = max(self._span_s, 1e-9)
        return (
            f"sent {self._sent}/{self._total}  done {counts.total()}  met {counts['met']}  "
            f"rejected {counts['rejected']}  failed {counts['failed']}  "
            f"goodput {counts['met'] / elapsed_s:.2f} req/s"
        )

    async def __aenter__(self) -> ReplayProgress:
        self._start_s = time.perf_counter()
        show = self._show_bar if self._console.is_terminal else self._print_lines
        self._ticker = asyncio.create_task(show())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker

    async def _print_lines(self) -> None:
        while True:
            await asyncio.sleep(self._line_period_s)
            self._console.print(self.line(), highlight=False, markup=False, soft_wrap=True)

    async def _show_bar(self) -> None:
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        # Refreshed from the event loop: a refreshing thread would disturb the timing.
        with Progress(*columns, console=self._console, auto_refresh=False) as bar:
            shown = bar.add_task(self.line(), total=self._total)
            try:
                while True:
                    await asyncio.sleep(BAR_PERIOD_S)
                    self._refresh(bar, shown)
            finally:
                self._refresh(bar, shown)

    def _refresh(self, bar: Progress, shown: TaskID) -> None:
        bar.update(shown, completed=self._counts.total(), description=self.line())
        bar.refresh()
