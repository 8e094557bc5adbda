# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Waiting for a child to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import aiohttp

from vllm_goodput.deploy.process import Child

_INTERVAL_S = 0.25
_REQUEST_TIMEOUT_S = 5.0


class ChildFailedError(Exception):
    """A child did not become healthy; the text continues its name: `exited with status 1 ...`."""


async def until_healthy(child: Child, timeout_s: float) -> None:
    """Return once `child` answers its health check with 200.

    Raises:
        ChildFailedError: it ended, or took longer than `timeout_s` seconds.
    """
    url = child.spec.health_url
    try:
        await unless_exited(child, asyncio.wait_for(_poll(url), timeout_s))
    except TimeoutError:
        raise ChildFailedError(f"did not answer {url} within {timeout_s:g} s") from None


async def unless_exited(child: Child, work: Coroutine[Any, Any, object]) -> None:
    """Do `work`, but give it up when `child` ends.

    Raises:
        ChildFailedError: the child ended first.
    """
    working = asyncio.ensure_future(work)
    exited = asyncio.ensure_future(child.wait())
    try:
        await asyncio.wait({working, exited}, return_when=asyncio.FIRST_COMPLETED)
        if exited.done():
            raise ChildFailedError(f"{child.describe_exit()} during start")
        await working
    finally:
        working.cancel()
        exited.cancel()
        await asyncio.gather(working, exited, return_exceptions=True)


async def _poll(url: str) -> None:
    timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while not await _answers(session, url):
            await asyncio.sleep(_INTERVAL_S)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
