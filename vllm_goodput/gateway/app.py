# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The gateway's application: routes, life cycle, and `serve()` that runs it until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from vllm_goodput.config import PoolConfig
from vllm_goodput.errors import DeployError, RequestError
from vllm_goodput.gateway.explain import EXPLAIN_PATH, Explainer
from vllm_goodput.gateway.kv_watches import KvWatches
from vllm_goodput.gateway.lengths import Lengths
from vllm_goodput.gateway.membership import Member, Membership
from vllm_goodput.gateway.metrics import GatewayMetrics
from vllm_goodput.gateway.prefix_metrics import KvEventMetrics
from vllm_goodput.gateway.proxy import Proxy, error_response
from vllm_goodput.gateway.upstream import Upstream
from vllm_goodput.instance.auth import SECRET_HEADER, require_pool
from vllm_goodput.instance.notes import emulation_note
from vllm_goodput.instance.slo_middleware import GENERATING_PATHS
from vllm_goodput.router import Router

log = logging.getLogger(__name__)


class Gateway:
    """Everything one gateway process holds."""

    def __init__(self, config: PoolConfig, session: aiohttp.ClientSession) -> None:
        self.config = config
        self.metrics = GatewayMetrics(lambda: self.router.instances.values())
        self.lengths = Lengths(config.router, self.metrics)
        self.router = Router(config.router, self.lengths.predictor)
        members = [Member(c, Upstream(c, session)) for c in config.instances]
        prefix = config.router.prefix.enabled
        self.watches = KvWatches(config.instances if prefix else (), self.router)
        self.metrics.registry.register(KvEventMetrics(lambda: self.watches))
        self.membership = Membership(config, self.router, members, self.watches)
        self.proxy = Proxy(config, self.router, self.membership, self.metrics, self.lengths)
        self.explainer = Explainer(self.router, self.proxy, self.lengths)

    async def models(self, _: web.Request) -> web.Response:
        """GET /v1/models."""
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "vllm"}
            for name in self.membership.models()
        ]
        return web.json_response({"object": "list", "data": data})

    async def health(self, _: web.Request) -> web.Response:
        """GET /health: 200 once every instance was tried and one takes requests."""
        states = {m.config.name: m.state for m in self.membership.members.values()}
        ready = self.membership.ready()
        body = {"status": "ok" if ready else "unavailable", "instances": states}
        return web.json_response(body, status=200 if ready else 503)

    async def metrics_page(self, _: web.Request) -> web.Response:
        """GET /metrics."""
        body = generate_latest(self.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def notes(self, _: web.Request) -> web.Response:
        """GET /goodput/v1/notes: what every report of measurements made here must say."""
        infos = await self._fresh_infos()
        notes = [
            note for name, info in infos.items() if (note := emulation_note(name, info)) is not None
        ]
        return web.json_response({"policy": self.config.router.policy, "notes": notes})

    async def pool(self, request: web.Request) -> web.Response:
        """GET /goodput/v1/pool: instances with their state and estimates; needs the pool's secret."""
        require_pool(request.headers.get(SECRET_HEADER), "/goodput/v1/pool")
        await self._fresh_infos()
        instances = [self._describe(m) for m in self.membership.members.values()]
        return web.json_response({"policy": self.config.router.policy, "instances": instances})

    def _describe(self, member: Member) -> dict[str, Any]:
        state = self.router.instances[member.config.name]
        return {
            **member.describe(),
            "kv_events": self.watches.describe(member.config.name),
            "in_flight": state.in_flight,
            "max_num_seqs": state.max_num_seqs,
            "overhead_ms": state.speed.overhead_s() * 1e3,
            "prefill_token_ms": state.speed.prefill_token_s() * 1e3,
            "decode_step_ms": {str(n): state.speed.decode_step_s(n) * 1e3 for n in (1, 8, 32)},
            "samples": state.speed.samples,
        }

    async def _fresh_infos(self) -> dict[str, dict[str, Any]]:
        members = list(self.membership.members.values())
        infos = await asyncio.gather(
            *(m.upstream.info(self.config.health.timeout_s) for m in members)
        )
        for member, info in zip(members, infos, strict=True):
            member.info = info or member.info
        return {m.config.name: m.info for m in members if m.info}


def build_app(config: PoolConfig) -> web.Application:
    """The aiohttp application of a gateway."""
    app = web.Application(
        client_max_size=int(config.max_body_mb * 2**20), middlewares=[_openai_errors]
    )

    async def life(app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout_s)
        # Idle connections are dropped before the instance does it (uvicorn: 5 s), lest a request meet a closing one.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,  # bytes are passed through; and none is asked to compress them
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),  # one client's cookies are no other's
            read_bufsize=2**18,
        ) as session:
            gateway = Gateway(config, session)
            app[GATEWAY] = gateway
            gateway.membership.start()
            gateway.lengths.start()
            yield
            await gateway.membership.stop()
            await gateway.watches.close()
            await gateway.lengths.stop()

    app.cleanup_ctx.append(life)
    _add_routes(app)
    return app


GATEWAY = web.AppKey("gateway", Gateway)


def _add_routes(app: web.Application) -> None:
    def route(method: str, path: str, name: str) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            target: Any = request.app[GATEWAY]
            for part in name.split("."):
                target = getattr(target, part)
            response: web.StreamResponse = await target(request)
            return response

        app.router.add_route(method, path, handler)

    for path in GENERATING_PATHS:
        route("POST", path, "proxy.handle")
    route("GET", "/v1/models", "models")
    route("GET", "/health", "health")
    route("GET", "/metrics", "metrics_page")
    route("GET", "/goodput/v1/notes", "notes")
    route("GET", "/goodput/v1/pool", "pool")
    route("POST", EXPLAIN_PATH, "explainer.handle")


@web.middleware
async def _openai_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Every error leaves in OpenAI's shape, aiohttp's own included."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except RequestError as error:
        return error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = (error.reason or "error").lower().replace(" ", "_")
        return error_response(RequestError(error.text or code, status=error.status, code=code))
    except Exception:
        log.exception("%s %s", request.method, request.path)
        return error_response(
            RequestError("internal error at the gateway", status=500, code="internal_error")
        )


async def serve(config: PoolConfig) -> None:
    """Run a gateway until SIGINT or SIGTERM; SIGHUP makes it load its length model again.

    Raises:
        DataError: the length model cannot be loaded.
        DeployError: the address cannot be bound.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        build_app(config), handler_cancellation=True, access_log=None, shutdown_timeout=5.0
    )
    await runner.setup()
    _on_hangup(stop.set, runner.app[GATEWAY].lengths.reload)
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=4096)
        try:
            await site.start()
        except OSError as error:
            raise DeployError(
                f"cannot listen on {config.host}:{config.port}: {error.strerror}; choose another with --port"
            ) from None
        _, port, *_ = runner.addresses[0]
        print(f"vllm-goodput gateway on http://{config.host}:{port}", flush=True)
        await stop.wait()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await runner.cleanup()


def _on_hangup(stop: Callable[[], None], reload: Callable[[], None]) -> None:
    """On SIGHUP reload; but stop if the terminal that we were started from has gone (unless nohup forbids it)."""
    bound = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    def hung_up() -> None:
        if bound and not _has_terminal():
            stop()
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
