# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The KV events of a pool: one watch for each instance that publishes them, feeding the router's prefix index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_goodput.config import InstanceConfig
from vllm_goodput.gateway.kv_events import KvEventWatch, zmq_context
from vllm_goodput.router import Router


class KvWatches:
    """Watches by instance, each from when it joins.

    Args:
        configs: of the pool's instances; those without `kv_events` are left out.
        router: told what the instances hold.

    Raises:
        ConfigError: some instance has `kv_events`, and what that needs is not installed.
    """

    def __init__(self, configs: Iterable[InstanceConfig], router: Router) -> None:
        self._configs = {c.name: c for c in configs if c.kv_events is not None}
        self._context = zmq_context() if self._configs else None
        self._sink = _RouterSink(router)
        self._watches: dict[str, KvEventWatch] = {}

    def __contains__(self, name: str) -> bool:
        """Whether an instance's events are to be followed."""
        return name in self._configs

    def __iter__(self) -> Iterator[tuple[str, KvEventWatch]]:
        return iter(self._watches.items())

    def start(self, name: str, model: str | None) -> None:
        """Begin to follow an instance that has joined, if it publishes.

        Args:
            name: the instance; not followed now.
            model: its base model's name in keys.
        """
        if self._context is not None and name in self._configs:
            watch = KvEventWatch(self._configs[name], self._sink, model, self._context)
            self._watches[name] = watch
            watch.start()

    async def stop(self, name: str) -> None:
        """End following an instance; nothing more is told of it."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            await watch.stop()

    async def close(self) -> None:
        """End following all of them."""
        for name in list(self._watches):
            await self.stop(name)
        if self._context is not None:
            self._context.destroy(linger=0)

    def describe(self, name: str) -> dict[str, Any] | None:
        """For /goodput/v1/pool; None for an instance that is not to be followed."""
        if name not in self._configs:
            return None
        watch = self._watches.get(name)
        if watch is None or not watch.counters.batches:
            return {"state": "waiting"}  # for it to join, or for a first message
        return {"state": "following", "blocks": watch.blocks, **asdict(watch.counters)}


class _RouterSink:
    """A KvEventSink that passes everything on to the router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def stored(self, instance: str, hashes: NDArray[np.uint64], parent: int | None) -> None:
        self._router.on_kv_stored(instance, hashes, parent)

    def removed(self, instance: str, hashes: NDArray[np.uint64]) -> None:
        self._router.on_kv_removed(instance, hashes)

    def lost(self, instance: str) -> None:
        self._router.on_kv_cleared(instance, text=False)

    def cleared(self, instance: str) -> None:
        self._router.on_kv_cleared(instance)
