# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Watches a model file and puts a changed one in the running one's place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from vllm_goodput.errors import DataError
from vllm_goodput.gateway.metrics import GatewayMetrics
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.predictor.store import load

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]


class ModelWatch:
    """Loads a model file, off the event loop, whenever it changes; one that cannot be used leaves the running one.

    Make it before the file is loaded for the first time, so that no change in between is missed.

    Args:
        path: the file.
        every_s: how often to look, seconds.
        metrics: told of swaps and failures.
    """

    def __init__(self, path: Path, every_s: float, metrics: GatewayMetrics) -> None:
        self._path = path
        self._every_s = every_s
        self._metrics = metrics
        self._seen = _stamp(path)
        self._reload = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, swap: Callable[[MoEModel], None]) -> None:
        """Begin watching; `swap` takes each new model."""
        self._task = asyncio.create_task(self._watch(swap))

    async def stop(self) -> None:
        """End watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def reload(self) -> None:
        """Load the file now, changed or not."""
        self._reload.set()

    async def _watch(self, swap: Callable[[MoEModel], None]) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._reload.wait()
            try:
                await self._look(swap)
            except DataError as error:
                self._metrics.swap_failures.inc()
                log.error("%s; the length model that was loaded before stays", error)
            except Exception:
                self._metrics.swap_failures.inc()
                log.exception("loading the length model %s", self._path)

    async def _look(self, swap: Callable[[MoEModel], None]) -> None:
        stamp = await asyncio.to_thread(_stamp, self._path)
        if stamp == self._seen and not self._reload.is_set():
            return
        # Noted before it is read: what is written meanwhile is another change.
        self._seen = stamp
        self._reload.clear()
        swap(await asyncio.to_thread(load, self._path))
        self._metrics.swaps.inc()
        self._metrics.predictor_loaded("learned", str(self._path))
        # A warning, since that is what operators see by default, and the line before it may tell of a failure.
        log.warning("length model %s is loaded in place of the one before", self._path)


def _stamp(path: Path) -> Stamp | None:
    """What changes when a file does; None if it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
