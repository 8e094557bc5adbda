# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What every progress bar shares: it is shown inside `with`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import Progress


class Shown:
    """Base of progress displays.

    Args:
        bar: what is shown.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
