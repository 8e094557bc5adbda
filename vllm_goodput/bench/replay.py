# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The open-loop client: every row is sent at its own time, whatever became of the earlier ones.

There is no limit on connections. Idle ones are closed before servers do (uvicorn: 5 s), since a request sent on a
connection that is being closed would count as failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import aiohttp

from vllm_goodput.bench.client import Exchange
from vllm_goodput.bench.endpoint import resolve_model
from vllm_goodput.bench.options import ReplayOptions
from vllm_goodput.bench.prompts import check_rows, request_body, request_headers
from vllm_goodput.bench.record import Record
from vllm_goodput.bench.row import TraceRow

KEEPALIVE_S = 2.0
GRACE_S = 5.0
LATENESS_LIMIT_S = 0.05
INTERRUPTED = "interrupted"


class Observer(Protocol):
    """Told of progress."""

    def sent(self) -> None:
        """A request was sent."""

    def done(self, record: Record) -> None:
        """A request has ended."""


class _Silent:
    def sent(self) -> None: ...

    def done(self, record: Record) -> None: ...


async def replay(
    rows: Sequence[TraceRow],
    options: ReplayOptions,
    *,
    observer: Observer | None = None,
    stop: asyncio.Event | None = None,
) -> list[Record]:
    """Send every row at its arrival time and wait for the answers.

    Args:
        rows: the trace, sorted by arrival.
        options: of the replay.
        observer: told of progress.
        stop: when set, nothing more is sent and open requests are cancelled.

    Returns:
        One record per request that was sent, in the order of rows.

    Raises:
        ConfigError: the server cannot be reached or no model is known, or the endpoint cannot take a row.
    """
    check_rows(rows, options)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    timeout = aiohttp.ClientTimeout(total=options.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        model = await resolve_model(http, options)
        run = _Run(http, options, model, observer or _Silent())
        try:
            await _until(stop, run.send_all(rows))
            await _until(stop, run.wait(options.timeout_s + GRACE_S))
        finally:
            await run.cancel()
    return [exchange.record() for exchange in run.exchanges]


class _Run:
    def __init__(
        self, http: aiohttp.ClientSession, options: ReplayOptions, model: str, observer: Observer
    ) -> None:
        self.http = http
        self.options = options
        self.model = model
        self.observer = observer
        self.exchanges: list[Exchange] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def send_all(self, rows: Sequence[TraceRow]) -> None:
        start_s = time.perf_counter()
        for index, row in enumerate(rows):
            body = request_body(row, index, self.model, self.options)  # before its time, not at it
            headers = request_headers(row, index, self.options)
            while (wait_s := start_s + row.arrival_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            await asyncio.sleep(0)  # a burst must not keep the answers waiting
            exchange = Exchange(index, row, f"{self.options.run_id}-{index}", start_s)
            task = asyncio.create_task(self._one(exchange, body, headers))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _one(self, exchange: Exchange, body: bytes, headers: dict[str, str]) -> None:
        self.exchanges.append(exchange)
        self.observer.sent()
        options = self.options
        await exchange.run(
            self.http, options.request_url, body, headers, options.stream, options.timeout_s
        )
        self.observer.done(exchange.record())

    async def wait(self, limit_s: float) -> None:
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=limit_s)

    async def cancel(self) -> None:
        """End what is still open."""
        open_tasks = list(self.tasks)
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        for exchange in self.exchanges:
            if not exchange.done:
                exchange.fail(INTERRUPTED)


async def _until(stop: asyncio.Event | None, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, but drop it once `stop` is set."""
    task = asyncio.create_task(work)
    if stop is None:
        await task
        return
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stopped.cancel()
        task.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
