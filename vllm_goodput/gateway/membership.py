# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Which instances take requests: each joins when healthy and measured, and leaves while it does not answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from vllm_goodput.config import GatewayConfig, InstanceConfig
from vllm_goodput.gateway.kv_size import KvSize, size_of_info, size_of_metrics
from vllm_goodput.gateway.kv_watches import KvWatches
from vllm_goodput.gateway.model_names import ModelNames
from vllm_goodput.gateway.probe import probe
from vllm_goodput.gateway.upstream import Upstream, UpstreamError
from vllm_goodput.router import Router
from vllm_goodput.router.estimator import SpeedEstimator
from vllm_goodput.router.instance import InstanceState

log = logging.getLogger(__name__)

# Consecutive failed health checks before a silent instance is taken out; a refused connection does it at once.
MAX_FAILED_CHECKS = 2
# An idle instance whose estimate is in doubt is measured again at most this often, seconds.
REMEASURE_S = 30.0


class Member:
    """One instance of the pool with its state."""

    def __init__(self, config: InstanceConfig, upstream: Upstream) -> None:
        self.config = config
        self.upstream = upstream
        self.models: dict[str, int | None] = {}  # name -> context length, where known
        self.info: dict[str, Any] | None = None
        self.kv = KvSize(config.kv_tokens, config.block_size)
        self.measured_s = 0.0
        self.state = "joining"  # joining | healthy | unhealthy
        self.attempted = (
            asyncio.Event()
        )  # set once joining has succeeded or failed for the first time

    def describe(self) -> dict[str, Any]:
        """For /goodput/v1/pool."""
        return {
            "name": self.config.name,
            "url": self.config.url,
            "state": self.state,
            "models": list(self.models),
            "kv_tokens": self.kv.kv_tokens,
            "block_size": self.kv.block_size,
            "info": self.info,
        }


def _limit(info: dict[str, Any] | None) -> int | None:
    """Concurrent sequences of an instance over all its data-parallel ranks; None where it does not tell."""
    if not info or "max_num_seqs" not in info:
        return None
    return int(info["max_num_seqs"]) * int(info.get("data_parallel_size", 1))


class Membership:
    """Joins and watches every instance; one task per instance.

    Args:
        config: health and probe settings.
        router: told about instances and their health.
        members: the pool.
        watches: follow the KV events of those that publish them; the caller closes them.
    """

    def __init__(
        self,
        config: GatewayConfig,
        router: Router,
        members: list[Member],
        watches: KvWatches,
    ) -> None:
        self._config = config
        self._router = router
        self._watches = watches
        self.members = {m.config.name: m for m in members}
        self.names = ModelNames()
        self._tasks: list[asyncio.Task[None]] = []
        self._rejected_s = 0.0

    def start(self) -> None:
        """Begin joining and watching."""
        for member in self.members.values():
            self._add(member, member.config.max_num_seqs, None)
            self._tasks.append(asyncio.create_task(self._watch(member)))

    async def stop(self) -> None:
        """End all watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def connection_failed(self, name: str) -> None:
        """A request could not reach the instance: take it out until its health check succeeds."""
        self._set_state(self.members[name], "unhealthy")

    def request_rejected(self) -> None:
        """A request was rejected as infeasible; if instances idle, their estimates are in doubt."""
        self._rejected_s = time.monotonic()

    def models(self) -> list[str]:
        """Names served by healthy instances, each once."""
        healthy = (m for m in self.members.values() if m.state == "healthy")
        return list(dict.fromkeys(name for m in healthy for name in m.models))

    def context_len(self, model: str | None) -> int | None:
        """The smallest context known of the instances that serve a model (None: any model), tokens."""
        known = (
            length
            for member in self.members.values()
            for name, length in member.models.items()
            if length is not None and model in (None, name)
        )
        return min(known, default=None)

    def ready(self) -> bool:
        """Whether every instance has been tried and one at least takes requests."""
        states = self.members.values()
        return all(m.attempted.is_set() for m in states) and any(
            m.state == "healthy" for m in states
        )

    async def _watch(self, member: Member) -> None:
        failed = 0
        while True:
            try:
                failed = await self._check(member, failed)
            except Exception:
                log.exception("checking instance %s", member.config.name)
            await asyncio.sleep(self._config.health.interval_s)

    async def _check(self, member: Member, failed: int) -> int:
        if await member.upstream.healthy(self._config.health.timeout_s):
            if member.state != "healthy":
                await self._join(member)
            elif self._doubtful(member):
                await self._measure(member)
            return 0
        failed += 1
        if failed >= MAX_FAILED_CHECKS or member.state == "joining":
            self._set_state(member, "unhealthy")
            member.attempted.set()
        return failed

    async def _join(self, member: Member) -> None:
        timeout_s = self._config.health.timeout_s
        name = member.config.name
        try:
            cards = await member.upstream.models(timeout_s)
        except UpstreamError as error:
            log.warning("instance %s is healthy but %s", name, error)
            member.attempted.set()
            return
        member.models = {card.name: card.context_len for card in cards}
        member.info = await member.upstream.info(timeout_s)
        member.kv = await self._kv_size(member)
        limit = member.config.max_num_seqs or _limit(member.info)
        state = self._add(member, limit, member.models)
        # After an absence it may be another engine.
        state.speed = SpeedEstimator()
        await self._watches.stop(name)
        self._router.on_kv_cleared(name)
        self._watches.start(name, self.names.learn(cards))
        await self._measure(member)
        self._set_state(member, "healthy")
        member.attempted.set()

    def _add(
        self, member: Member, limit: int | None, models: Iterable[str] | None
    ) -> InstanceState:
        name = member.config.name
        return self._router.add_instance(
            name,
            limit,
            models,
            healthy=False,
            kv_tokens=member.kv.kv_tokens,
            block_size=member.kv.block_size,
            kv_events=name in self._watches,
        )

    async def _kv_size(self, member: Member) -> KvSize:
        """The size of its KV cache: as configured, else as it tells."""
        config = member.config
        size = KvSize(config.kv_tokens, config.block_size).over(size_of_info(member.info))
        if not size.complete:
            page = await member.upstream.metrics_page(self._config.health.timeout_s)
            size = size.over(size_of_metrics(page))
        return size

    async def _measure(self, member: Member) -> None:
        """Learn an idle instance's speed afresh from a few requests of our own."""
        member.measured_s = time.monotonic()
        if not self._config.probe.enabled or not member.models:
            return
        speed = SpeedEstimator()
        if await probe(
            member.upstream, next(iter(member.models)), speed, self._config.probe.timeout_s
        ):
            self._router.instances[member.config.name].speed = speed

    def _doubtful(self, member: Member) -> bool:
        """Whether requests were rejected since the instance was last measured, and it idles: its speed may be wrong."""
        idle = not self._router.instances[member.config.name].in_flight
        old = time.monotonic() - member.measured_s > REMEASURE_S
        return idle and old and self._rejected_s > member.measured_s

    def _set_state(self, member: Member, state: str) -> None:
        if member.state != state:
            level = logging.INFO if state == "healthy" else logging.WARNING
            log.log(level, "instance %s is %s (was %s)", member.config.url, state, member.state)
            stall_s = self._config.health.stall_s if state == "unhealthy" else None
            member.upstream.suspect(stall_s)
        member.state = state
        self._router.set_healthy(member.config.name, state == "healthy")
