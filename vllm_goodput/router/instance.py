# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One instance as the router sees it: its limits and health, and a window on what the native pool keeps of it."""

from __future__ import annotations

from vllm_goodput import _C
from vllm_goodput.router.estimator import SpeedEstimator

# Concurrency assumed where an instance's limit is unknown.
DEFAULT_MAX_NUM_SEQS = 256


class InstanceState:
    """Limits, health and speed of one instance; bookings are in the pool (`csrc/pool.h`).

    Args:
        name: unique name.
        pool: holds the rest under this instance's slot.
    """

    __slots__ = ("_max_num_seqs", "_pool", "_speed", "healthy", "models", "name", "slot")

    def __init__(self, name: str, pool: _C.Pool) -> None:
        self.name = name
        self.healthy = True
        self.models: frozenset[str] | None = (
            None  # names it serves; None: unknown, it may serve any
        )
        self._pool = pool
        self._max_num_seqs: int | None = None
        self.slot = pool.add_instance(DEFAULT_MAX_NUM_SEQS)
        self._speed = SpeedEstimator(pool.speed(self.slot))

    @property
    def max_num_seqs(self) -> int | None:
        """The engine's limit on concurrent sequences; None when unknown."""
        return self._max_num_seqs

    @max_num_seqs.setter
    def max_num_seqs(self, value: int | None) -> None:
        self._max_num_seqs = value
        self._pool.set_limit(self.slot, self.limit)

    @property
    def limit(self) -> int:
        """Concurrent sequences at most."""
        return self._max_num_seqs or DEFAULT_MAX_NUM_SEQS

    @property
    def in_flight(self) -> int:
        """Requests dispatched and not finished."""
        return self._pool.in_flight(self.slot)

    @property
    def speed(self) -> SpeedEstimator:
        """How fast it is; a new estimator may be set in its place."""
        return self._speed

    @speed.setter
    def speed(self, value: SpeedEstimator) -> None:
        self._speed = value
        self._pool.set_speed(self.slot, value.native)
