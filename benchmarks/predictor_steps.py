# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Progress of a benchmark in steps: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_goodput.progress import Shown


class Steps(Shown):
    """Shows, inside `with`, which step is at work.

    Args:
        console: where to show it.
        total: number of steps.
    """

    def __init__(self, console: Console, total: int) -> None:
        columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
        text = TextColumn("{task.description}", markup=False)
        bar = Progress(*columns, text, console=console, disable=not console.is_terminal)
        super().__init__(bar)
        self._task = self._bar.add_task("", total=total)
        self._console = console
        self._total = total
        self._start_s = time.perf_counter()
        self._begun = 0
        self._step = ""

    def begin(self, step: str) -> None:
        """The step before has ended and this one begins."""
        self._step = step
        self._bar.update(self._task, description=step, completed=self._begun)
        self._begun += 1
        if not self._console.is_terminal:
            elapsed_s = time.perf_counter() - self._start_s
            line = f"{elapsed_s:7.1f} s  {self._begun}/{self._total} {step}"
            self._console.print(line, markup=False, soft_wrap=True)

    def stage(self, stage: str) -> None:
        """What the step is doing."""
        self._bar.update(self._task, description=f"{self._step}: {stage}")
