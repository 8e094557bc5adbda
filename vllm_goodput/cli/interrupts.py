# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Ctrl-C while native code runs that calls back into Python."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

EXIT_INTERRUPTED = 130
_SHOW_CURSOR = b"\r\n\x1b[?25h"


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Inside `with`, Ctrl-C ends the process at once, without unwinding; only for work that writes nothing.

    A KeyboardInterrupt that is raised in a callback never reaches the caller: ctypes drops it, and the library
    (XGBoost) fails with an error of its own, goes on, or crashes.
    """

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        # A progress bar hides the cursor. Not by print(): it may be what was interrupted.
        text = _SHOW_CURSOR if os.isatty(2) else b""
        with suppress(OSError):
            os.write(2, text + b"vllm-goodput: interrupted\n")
        os._exit(EXIT_INTERRUPTED)

    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # such as a script's job in the background
        yield
        return
    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
