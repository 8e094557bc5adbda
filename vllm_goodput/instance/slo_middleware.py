# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""ASGI middleware of an instance: validates SLO fields, guards internal ones, counts met and missed requests.

It passes every byte through unchanged. TPOT is taken from the stream's events, so several tokens in one event make
it look larger per event than per token; without streaming, TTFT is the time to the whole answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from vllm_goodput import envs
from vllm_goodput.errors import ForbiddenError, RejectedError, RequestError
from vllm_goodput.instance.auth import SECRET_HEADER, is_pool
from vllm_goodput.instance.metrics import InstanceMetrics
from vllm_goodput.slo import SLO, RequestSLO, internal_fields, request_slo

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

GENERATING_PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})


class SLOMiddleware:
    """See the module's docstring."""

    def __init__(self, app: App, default: SLO, metrics: InstanceMetrics) -> None:
        self.app = app
        self.default = default
        self.metrics = metrics

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http" or _path(scope) not in GENERATING_PATHS:
            await self.app(scope, receive, send)
            return
        started_s = time.monotonic()
        messages, raw = await _read_body(receive)
        try:
            request = self._parse(scope, raw)
        except RequestError as error:
            outcome = "rejected" if isinstance(error, RejectedError) else "invalid"
            self.metrics.requests.labels("none", outcome).inc()
            await _answer(send, error)
            return
        watch = _Watch(started_s)
        try:
            await self.app(scope, _replay(messages, receive), watch.wrap(send))
        finally:
            self._count(request, watch)

    def _parse(self, scope: Message, raw: bytes) -> RequestSLO:
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in scope["headers"]]
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = {}  # vLLM answers malformed JSON itself
        if not isinstance(body, dict):
            body = {}
        reserved = internal_fields(body)
        secret = next((v for k, v in headers if k.lower() == SECRET_HEADER), None)
        if reserved and not is_pool(secret, envs.pool_secret()):
            name = f"vllm_xargs.{reserved[0]}"
            raise ForbiddenError(f"{name} is reserved for the pool", param=name)
        return request_slo(headers, body, self.default, time.time())

    def _count(self, request: RequestSLO, watch: _Watch) -> None:
        task = self.metrics.task_label(request.task)
        if not watch.complete:
            outcome = "aborted"
        elif watch.status >= 400:
            outcome = "invalid" if watch.status < 500 else "failed"
        else:
            late = watch.missed(request.slo)
            for metric in late:
                self.metrics.missed.labels(task, metric).inc()
            outcome = "missed" if late else "met"
        self.metrics.requests.labels(task, outcome).inc()


class _Watch:
    """Times one response as it is sent."""

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.first_s: float | None = None
        self.last_s = started_s
        self.events = 0
        self.status = 0
        self.complete = False

    def wrap(self, send: Send) -> Send:
        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            elif message["type"] == "http.response.body":
                self._note(message)
            await send(message)

        return timed

    def _note(self, message: Message) -> None:
        body = message.get("body", b"")
        if body:
            self.last_s = time.monotonic()
            self.first_s = self.first_s or self.last_s
            self.events += body.count(b"data: ") - body.count(b"data: [DONE]")
        self.complete = self.complete or not message.get("more_body", False)

    def missed(self, slo: SLO) -> list[str]:
        first_s = self.first_s or self.last_s
        steps = self.events - 1
        tpot_s = (self.last_s - first_s) / steps if steps > 0 else 0.0
        return slo.missed_by(first_s - self.started_s, tpot_s, self.last_s - self.started_s)


def _path(scope: Message) -> str:
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root) else path


async def _read_body(receive: Receive) -> tuple[list[Message], bytes]:
    messages: list[Message] = []
    chunks: list[bytes] = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            break
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return messages, b"".join(chunks)


def _replay(messages: list[Message], receive: Receive) -> Receive:
    pending = iter(messages)

    async def replayed() -> Message:
        for message in pending:
            return message
        return await receive()

    return replayed


async def _answer(send: Send, error: RequestError) -> None:
    headers = {"content-type": "application/json", **error.headers}
    raw = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": orjson.dumps(error.body())})
