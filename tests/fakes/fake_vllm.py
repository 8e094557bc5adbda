# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A real local HTTP server that answers as vLLM's OpenAI server does, at a chosen speed, with faults on demand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakeVLLM:
    """One instance; use as an async context manager, then read `url`.

    Args:
        token_s: seconds per output token.
        model: name served.
        max_model_len: its context, if told.
        aliases, adapters: further names of the model, and of LoRA adapters.
        prompt_tokens: of any prompt, as usage tells.
        cached_tokens: those of them in the prefix cache; None: usage does not tell.
        cache_info: labels of the metric vllm:cache_config_info, for each data-parallel rank; None: no /metrics.
        info: answer of the plugin's /goodput/v1/info; None: a stock vLLM.
        settings: its configuration in the pool, besides name and URL.
        fault: None, or one of: refuse (503), crash (drops the connection at once), cut (drops it after two tokens),
            error (an error event in the stream), stall (falls silent after two tokens), 500, silent (never answers).
    """

    token_s: float = 0.002
    model: str = "tiny"
    max_model_len: int | None = None
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    prompt_tokens: int = 7
    cached_tokens: int | None = None
    cache_info: list[dict[str, Any]] | None = None
    info: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None
    url: str = ""
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    running: int = 0
    aborted: int = 0
    healthy: bool = True

    async def __aenter__(self) -> FakeVLLM:
        app = web.Application()
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/goodput/v1/info", self._info)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, _: web.Request) -> web.Response:
        base = {"root": f"/models/{self.model}", "max_model_len": self.max_model_len}
        cards = [{"id": name, "parent": None, **base} for name in (self.model, *self.aliases)]
        cards += [{"id": a, "root": f"/loras/{a}", "parent": self.model} for a in self.adapters]
        return web.json_response({"object": "list", "data": cards})

    async def _metrics(self, _: web.Request) -> web.Response:
        if self.cache_info is None:
            raise web.HTTPNotFound
        lines = ["# TYPE vllm:cache_config_info gauge"]
        for rank, labels in enumerate(self.cache_info):
            pairs = ",".join(f'{k}="{v}"' for k, v in {**labels, "engine": rank}.items())
            lines.append(f"vllm:cache_config_info{{{pairs}}} 1.0")
        return web.Response(text="\n".join(lines) + "\n")

    async def _info(self, _: web.Request) -> web.Response:
        if self.info is None:
            raise web.HTTPNotFound
        return web.json_response(self.info)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.seen.append(({k.lower(): v for k, v in request.headers.items()}, raw))
        body = json.loads(raw)
        if self.fault == "refuse":
            return web.json_response({"error": {"message": "busy"}}, status=503)
        if self.fault == "500":
            return web.json_response({"error": {"message": "broken"}}, status=500)
        if self.fault == "crash":
            assert request.transport is not None
            request.transport.close()
            await asyncio.sleep(1)
        if self.fault == "silent":
            await asyncio.sleep(30)
        self.running += 1
        try:
            return await self._answer(request, body)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        count = int(body.get("max_tokens", 8))
        tokens = count * body.get("n", 1)  # of all choices together, as vLLM counts them
        prompt = self.prompt_tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens}
        usage["total_tokens"] = tokens + prompt
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if not body.get("stream"):
            await asyncio.sleep(self.token_s * count)
            text = "x" * count
            return web.json_response(
                {"id": "cmpl-1", "choices": [{"index": 0, "text": text}], "usage": usage},
                headers={"x-from-engine": "yes", "Set-Cookie": "session=first"},
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for i in range(count):
            await asyncio.sleep(self.token_s)
            if self.fault == "cut" and i == 2:
                assert request.transport is not None
                request.transport.abort()
                await asyncio.sleep(1)
            if self.fault == "stall" and i == 2:
                await asyncio.sleep(30)
            if self.fault == "error" and i == 2:
                await response.write(b'data: {"error": {"message": "lost"}}\n\n')
                break
            await response.write(_event({"id": "cmpl-1", "choices": [{"index": 0, "text": "x"}]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(_event({"id": "cmpl-1", "choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
