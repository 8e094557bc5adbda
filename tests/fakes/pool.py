# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A gateway over fake engines, in this process."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
from aiohttp import web

from vllm_goodput.config import PoolConfig
from vllm_goodput.gateway.app import GATEWAY, build_app

BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 5}


@contextlib.asynccontextmanager
async def pool(*engines, **settings):
    """A gateway over the given engines; yields a client session bound to it, and the gateway object.

    It predicts lengths by a running histogram unless the settings say otherwise.
    """
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        instances = [{"name": f"i{n}", "url": e.url, **e.settings} for n, e in enumerate(engines)]
        data = {"probe": {"enabled": False}, "health": {"interval_s": 0.1}, **settings}
        data["router"] = {"predictor": {"kind": "histogram"}, **data.get("router", {})}
        app = build_app(PoolConfig.model_validate({"instances": instances, **data}))
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        await until(lambda: app[GATEWAY].membership.ready() or not any(e.healthy for e in engines))
        yield session, app[GATEWAY]


async def until(condition, timeout_s=5.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def post(session, body=None, headers=None, path="/v1/completions"):
    async with session.post(path, json=body or BODY, headers=headers) as response:
        return response.status, response.headers, await response.read()


def idle(gateway):
    return not gateway.router._open and not any(
        s.in_flight for s in gateway.router.instances.values()
    )


def metric(gateway, name, **labels):
    return gateway.metrics.registry.get_sample_value(name, labels) or 0.0
