# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A small process that outlives a SIGKILL of ours and ends what ignored the death signal.

The death signal reaches a child's main process only: an engine whose API server hangs or is dead
would stay, and with it the GPU's memory. The guardian learns of our end by the end of its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

from vllm_goodput.deploy import group

_EXIT_S = 2.0


class Guardian:
    """Told which process groups run; started with the first one.

    Args:
        grace_s: time that groups have to end by themselves after our end, seconds.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, pgid: int) -> None:
        """A group runs."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", group.__file__, str(self._grace_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._tell(f"+{pgid}\n")

    def release(self, pgid: int) -> None:
        """A group is gone."""
        self._tell(f"-{pgid}\n")

    async def close(self) -> None:
        """Let it end; it stays a while if a group that was not released still runs."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, _EXIT_S)

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it was killed; the death signal remains
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
