# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Progress of training: a bar over its stages on a terminal, a plain line per stage elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_goodput.progress import Shown

LINE_PERIOD_S = 10.0


class TrainProgress(Shown):
    """Shows, inside `with`, what training is at.

    Args:
        console: where to show it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        super().__init__(Progress(*columns, console=console, disable=not console.is_terminal))
        self._task = self._bar.add_task("reading", total=None)
        self._start_s = self._shown_s = time.perf_counter()
        self._begun = 0

    def rows(self, count: int) -> None:
        """So many rows have been read."""
        self._bar.update(self._task, description=f"reading: {count} rows")
        if time.perf_counter() - self._shown_s >= LINE_PERIOD_S:
            self._print(f"reading: {count} rows")

    def expect(self, stages: int) -> None:
        """So many stages are to come."""
        self._bar.update(self._task, total=stages)

    def stage(self, name: str) -> None:
        """The stage of this name begins."""
        self._bar.update(self._task, description=name, completed=self._begun)
        self._begun += 1
        self._print(name)

    def _print(self, text: str) -> None:
        self._shown_s = time.perf_counter()
        if not self._console.is_terminal:
            elapsed_s = self._shown_s - self._start_s
            self._console.print(
                f"{elapsed_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True
            )
