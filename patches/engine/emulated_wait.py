# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Emulation: a process that waits for its next step sleeps instead of spinning for a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm_goodput.patches.base import Patch, Target

SPIN_S = 0.0005
# vLLM's writers drop notifications that come fast one after another, relying on the spin; so look again this often.
POLL_MS = 2
ACTIVE_S = 1.0  # after so long without a message, wait as vLLM does when idle


def _wrap(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def wait(self: Any, timeout_ms: int | None = None) -> None:
        if not _emulating():
            original(self, timeout_ms)
            return
        self.busy_loop_s = SPIN_S
        active = time.monotonic() - self.last_read < ACTIVE_S
        original(self, POLL_MS if active else timeout_ms)

    return wait


def _emulating() -> bool:
    from vllm_goodput.plugin import active_config

    config = active_config()
    return config is not None and config.emulate is not None


PATCH = Patch(
    name="emulated_wait",
    targets=(
        Target(
            "vllm.distributed.device_communicators.shm_broadcast:SpinCondition.wait",
            "(self, timeout_ms: int | None=None)",
            _wrap,
        ),
    ),
    why="vLLM's worker and engine processes spin on shared memory for a second after each message. Under emulation "
    "they would burn a core each while steps are padded, and starve the other engines on the machine.",
    how="While emulation is on, spins for half a millisecond only, then waits for the notification in turns of 2 ms.",
    supported=">=0.32,<0.34",
    remove_when="vLLM makes the length of the spin a setting.",
)
