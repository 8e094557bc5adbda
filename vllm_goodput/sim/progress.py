# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Progress of simulations: a bar on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_goodput.bench.record import Record
from vllm_goodput.progress import Shown

BAR_PERIOD_S = 0.2
LINE_PERIOD_S = 10.0
LOOK_EVERY = 32  # requests between two looks at the clock


class SimProgress(Shown):
    """A StudyObserver that shows, inside `with`, how far the simulations are.

    Args:
        total: number of simulations.
        console: where to show it.
    """

    def __init__(self, total: int, console: Console) -> None:
        self._total = total
        self._console = console
        columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        terminal = console.is_terminal
        super().__init__(
            Progress(
                *columns, console=console, disable=not terminal, auto_refresh=False, transient=True
            )
        )
        self._period_s = BAR_PERIOD_S if terminal else LINE_PERIOD_S
        self._task = self._bar.add_task("", total=float(total))
        self._name = ""
        self._begun = 0
        self._requests = 0
        self._done = 0
        self._shown_s = time.perf_counter()

    def begin(self, policy: str, seed: int, requests: int) -> None:
        """See StudyObserver."""
        self._name = f"{policy}, seed {seed}"
        self._begun += 1
        self._requests, self._done = requests, 0

    def sent(self) -> None:
        """See Observer."""

    def done(self, record: Record) -> None:
        """See Observer."""
        self._done += 1
        if self._done % LOOK_EVERY == 0 and time.perf_counter() - self._shown_s >= self._period_s:
            self._show()

    def _show(self) -> None:
        self._shown_s = time.perf_counter()
        text = (
            f"simulation {self._begun} of {self._total}: {self._name}, "
            f"{self._done} of {self._requests} requests"
        )
        if self._console.is_terminal:
            completed = self._begun - 1 + self._done / max(1, self._requests)
            self._bar.update(self._task, completed=completed, description=text)
            self._bar.refresh()
        else:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
