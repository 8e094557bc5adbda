# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Process groups: every child leads one, and what it starts itself is in it too.

Standard library only: run as a program, this file is the guardian of `guardian.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def death_signal_setter(signum: int = signal.SIGTERM) -> Callable[[], None] | None:
    """A `preexec_fn`: the child gets `signum` when the thread that started it ends, however.

    vLLM's API server ends its EngineCore on SIGTERM. None where the system has no such thing (not
    Linux).
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(
        None, use_errno=True
    )  # loaded here: between fork and exec as little as possible
    parent = os.getpid()

    def preexec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return preexec


def send(pgid: int, signum: int) -> None:
    """Signal every process of a group; a group that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signum)


def is_alive(pgid: int) -> bool:
    """Whether a process of the group still runs; zombies, waiting to be reaped, do not count."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    members = _members(pgid)
    return True if members is None else bool(members)


def _members(pgid: int) -> list[int] | None:
    """Process ids of the group's running members, or None without a Linux /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            state, group = _state_and_group(entry)
            if group == pgid and state not in ("Z", "X"):
                found.append(int(entry))
    return found


def _state_and_group(pid: str) -> tuple[str, int]:
    try:
        stat = Path("/proc", pid, "stat").read_text(errors="replace")
    except OSError:  # ended meanwhile
        return "X", 0
    state, _ppid, group = stat.rpartition(")")[2].split()[:3]
    return state, int(group)


def guard(lines: Iterable[str], grace_s: float) -> None:
    """Follow `+PGID` and `-PGID` lines to their end, then see the groups left off.

    They have the death signal already; those still alive after `grace_s` seconds are killed.
    """
    groups: set[int] = set()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    deadline = time.monotonic() + grace_s
    while groups := {pgid for pgid in groups if is_alive(pgid)}:
        if time.monotonic() >= deadline:
            for pgid in groups:
                send(pgid, signal.SIGKILL)
            return
        time.sleep(0.1)


if __name__ == "__main__":
    guard(sys.stdin, float(sys.argv[1]))
