# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""An instance in a simulated pool: its engine, and the loop's events for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_goodput.sim.engine import INF, Engine, Output
from vllm_goodput.sim.loop import EventLoop
from vllm_goodput.sim.sequence import Seq
from vllm_goodput.sim.spec import SimInstance

Listener = Callable[[list[Output]], None]


class Member:
    """One instance.

    Args:
        spec: what it is.
        loop: the simulation's.
        listener: gets the engine's outputs as steps end.
    """

    def __init__(self, spec: SimInstance, loop: EventLoop, listener: Listener) -> None:
        self.spec = spec
        self.engine = Engine(spec)
        self.alive = True
        self.measured_s = 0.0
        self.jobs = 0  # requests dispatched here and not ended
        self.cached = 0  # prompt tokens found in the prefix cache
        self.preemptions = 0
        self.finished = 0
        self._slowdown = 1.0
        self._loop = loop
        self._listener = listener
        self._wake_s = INF

    @property
    def slowdown(self) -> float:
        """Factor on step times."""
        return self._slowdown

    def submit(self, seq: Seq) -> None:
        """A request reaches the engine."""
        self.engine.submit(seq, self._loop.now_s)
        self._schedule()

    def remove(self, seq: Seq) -> int:
        """Take a request out; returns its output tokens so far."""
        made = self.engine.remove(seq, self._loop.now_s)
        self.count(seq)
        self._schedule()
        return made

    def count(self, seq: Seq) -> None:
        """Add a sequence that has left to the statistics."""
        self.cached += seq.cached
        self.preemptions += seq.preemptions

    def slow_down(self, factor: float) -> None:
        """Steps take `factor` times the profile's time from now on."""
        self._slowdown = factor
        self.engine.set_slowdown(factor, self._loop.now_s)
        self._schedule()

    def die(self) -> None:
        """Everything in the engine is lost."""
        self.alive = False
        self.engine = Engine(self.spec)
        self._wake_s = INF

    def revive(self) -> None:
        """It is back, as it was at the beginning."""
        self.alive = True
        self.engine = Engine(self.spec)
        self.engine.set_slowdown(self._slowdown, self._loop.now_s)

    def stats(self) -> dict[str, Any]:
        """Counters since the beginning, or since it came back."""
        engine = self.engine
        return {
            "steps": engine.steps,
            "busy_s": engine.busy_s,
            "prefilled_tokens": engine.prefilled,
            "cached_tokens": self.cached,
            "preemptions": self.preemptions,
            "finished": self.finished,
        }

    def _schedule(self) -> None:
        """Wake up when something happens; an earlier event for a later time is then void."""
        at_s = self.engine.next_s
        if at_s != self._wake_s:
            self._wake_s = at_s
            if at_s < INF:
                self._loop.at(at_s, lambda: self._wake(at_s))

    def _wake(self, at_s: float) -> None:
        if at_s != self._wake_s:
            return
        self._wake_s = INF
        outputs = self.engine.advance(at_s)
        self._schedule()
        if outputs:
            self._listener(outputs)
