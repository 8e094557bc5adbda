# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A pool of simulated instances behind a real Router: one trace in, one Record per request out.

The router gets what the gateway gives it: the same request descriptions, predictions asked for once per request, held
requests asked again when it said, first tokens, token counts and ends. Only the jitter of overheads is random,
by a seed: equal arguments give equal records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vllm_goodput.bench.record import Record
from vllm_goodput.bench.replay import Observer
from vllm_goodput.bench.row import TraceRow
from vllm_goodput.router import Router
from vllm_goodput.sim.loop import Action, EventLoop, HeapLoop
from vllm_goodput.sim.member import Member
from vllm_goodput.sim.serving import Serving
from vllm_goodput.sim.spec import Change, SimInstance, SimOptions, check_names
from vllm_goodput.sim.warmup import measure

HEALTH_INTERVAL_S = 2.0


def simulate(
    rows: Sequence[TraceRow],
    instances: Sequence[SimInstance],
    router: Router,
    *,
    options: SimOptions = SimOptions(),  # noqa: B008  (frozen)
    observer: Observer | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[Record]:
    """Replay a trace against a simulated pool; see Simulation."""
    return Simulation(rows, instances, router, options, observer).run(stop)


class Simulation:
    """One replay of a trace against a simulated pool.

    Args:
        rows: the trace, sorted by arrival.
        instances: the pool; added to the router, with measured speeds unless `options.probe` is off.
        router: a new one; decides and learns.
        options: how.
        observer: told of progress.
        loop: a new event loop; None means a HeapLoop.

    Raises:
        ConfigError: an instance's name is used twice, or a change names none.
    """

    def __init__(
        self,
        rows: Sequence[TraceRow],
        instances: Sequence[SimInstance],
        router: Router,
        options: SimOptions = SimOptions(),  # noqa: B008  (frozen)
        observer: Observer | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        check_names(instances, options.changes)
        self._rows = rows
        self._router = router
        self._options = options
        self._loop = loop or HeapLoop()
        self._members: dict[str, Member] = {}
        self._serving = Serving(rows, router, options, observer, self._loop, self._members)
        for spec in instances:
            self._members[spec.name] = Member(spec, self._loop, self._serving.on_outputs)

    def run(self, stop: Callable[[], bool] | None = None) -> list[Record]:
        """Simulate until every request has ended.

        Args:
            stop: ends it early; what is open then counts as interrupted.

        Returns:
            One record per request that arrived, in the order of rows.
        """
        for member in self._members.values():
            self._join(member)
        self._schedule_events()
        serving, total = self._serving, len(self._rows)
        self._loop.run(lambda: serving.ended >= total or (stop is not None and stop()))
        return serving.records()

    def stats(self) -> dict[str, dict[str, Any]]:
        """Counters of every instance."""
        return {name: member.stats() for name, member in self._members.items()}

    def _schedule_events(self) -> None:
        options, loop = self._options, self._loop
        if self._rows:
            loop.at(self._rows[0].arrival_s, self._serving.arrive)
        for change in options.changes:
            loop.at(change.at_s, partial(self._change, change))
        if options.streaming and options.progress_interval_s > 0:
            self._every(options.progress_interval_s, self._serving.report_progress)
        if options.migration:
            interval_s = options.rectify_interval_s or self._router.config.migration.interval_s
            self._every(interval_s, self._rectify)
        if options.remeasure_s is not None and options.probe:
            self._every(HEALTH_INTERVAL_S, self._remeasure)

    def _every(self, interval_s: float, action: Action) -> None:
        def tick() -> None:
            action()
            self._loop.at(self._loop.now_s + interval_s, tick)

        self._loop.at(interval_s, tick)

    def _join(self, member: Member) -> None:
        self._router.add_instance(
            member.spec.name,
            member.spec.max_num_seqs,
            kv_tokens=member.spec.kv_tokens,
            block_size=member.spec.block_size,
        )
        if self._options.probe:
            self._measure(member)

    def _measure(self, member: Member) -> None:
        member.measured_s = self._loop.now_s
        self._router.instances[member.spec.name].speed = measure(
            member.spec,
            self._options.overheads,
            self._options.probe_word_tokens,
            member.slowdown,
        )

    def _remeasure(self) -> None:
        """Measure idle instances in doubt again, as gateway/membership.py; that takes no time here."""
        for member in self._members.values():
            old = self._loop.now_s - member.measured_s > (self._options.remeasure_s or 0.0)
            doubtful = self._serving.rejected_s > member.measured_s
            if member.alive and not member.jobs and old and doubtful:
                self._measure(member)

    def _rectify(self) -> None:
        for migration in self._router.rectify(self._loop.now_s):
            self._serving.move(migration)

    def _change(self, change: Change) -> None:
        member = self._members[change.instance]
        if change.slowdown is not None:
            member.slow_down(change.slowdown)
        if change.alive is False and member.alive:
            member.die()
            self._router.set_healthy(change.instance, False)
            self._serving.lose(member)
        elif change.alive and not member.alive:
            member.revive()
            self._join(member)
