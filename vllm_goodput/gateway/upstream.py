# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One vLLM instance as the gateway talks to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import orjson

from vllm_goodput import envs
from vllm_goodput.config import InstanceConfig
from vllm_goodput.gateway.model_names import ModelCard
from vllm_goodput.instance.auth import SECRET_HEADER

# Headers that belong to one connection, or that the client library sets itself.
HOP_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "accept-encoding",
        "content-encoding",  # bodies arrive decompressed
        "expect",
    }
)
INTERNAL_HEADERS = "x-goodput-"
PASSED_INTERNAL = frozenset({"x-goodput-task"})


class UpstreamError(Exception):
    """An instance did not answer as it should; the message says how."""


class Upstream:
    """Requests to one instance over the gateway's shared client session."""

    def __init__(self, config: InstanceConfig, session: aiohttp.ClientSession) -> None:
        self.name = config.name
        self.url = config.url
        self._api_key = config.api_key
        self._session = session
        self._guards: set[asyncio.Timeout] = set()
        self._stall_s: float | None = None

    @contextlib.asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        """Ends what is awaited inside with a TimeoutError if nothing comes while the instance is suspected."""
        async with asyncio.timeout(self._stall_s) as limit:
            self._guards.add(limit)
            try:
                yield
            finally:
                self._guards.discard(limit)

    def suspect(self, stall_s: float | None) -> None:
        """The instance fails its health checks: end what gets nothing from it for so long. None: it is well again."""
        self._stall_s = stall_s
        at_s = None if stall_s is None else asyncio.get_running_loop().time() + stall_s
        for limit in self._guards:
            limit.reschedule(at_s)

    def post(
        self, path: str, raw: bytes, headers: Iterable[tuple[str, str]], request_id: str
    ) -> Any:
        """Send a client's request on, unchanged but for connection and internal headers."""
        sent = [(k, v) for k, v in headers if _passes(k)]
        sent.append(("x-request-id", request_id))
        if self._api_key is not None:
            sent = [(k, v) for k, v in sent if k.lower() != "authorization"]
            sent.append(("Authorization", f"Bearer {self._api_key}"))
        return self._session.post(f"{self.url}{path}", data=raw, headers=sent)

    async def healthy(self, timeout_s: float) -> bool:
        """Whether /health answers 200 within the timeout."""
        try:
            async with self._get("/health", timeout_s) as response:
                return bool(response.status == 200)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def models(self, timeout_s: float) -> tuple[ModelCard, ...]:
        """The models it serves, as far as it tells of them.

        Raises:
            UpstreamError: no usable answer.
        """
        data = (await self._json("/v1/models", timeout_s)).get("data")
        if not isinstance(data, list):
            raise UpstreamError("/v1/models has no data list")
        return tuple(_card(card) for card in data if isinstance(card, dict) and "id" in card)

    async def info(self, timeout_s: float) -> dict[str, Any] | None:
        """The plugin's /goodput/v1/info; None for a stock vLLM or without the pool's secret."""
        secret = envs.pool_secret()
        if secret is None:
            return None
        try:
            return await self._json("/goodput/v1/info", timeout_s, {SECRET_HEADER: secret})
        except UpstreamError:
            return None

    async def metrics_page(self, timeout_s: float) -> str:
        """Its /metrics; empty if there is none."""
        try:
            async with self._get("/metrics", timeout_s) as response:
                raw: bytes = await response.read() if response.status == 200 else b""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ""
        return raw.decode("utf-8", "replace")

    async def complete(self, body: dict[str, Any], timeout_s: float) -> aiohttp.ClientResponse:
        """Start a completion of the gateway's own, for speed probes."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        headers = {"Content-Type": "application/json", **self._auth()}
        return await self._session.post(
            f"{self.url}/v1/completions", data=orjson.dumps(body), headers=headers, timeout=timeout
        )

    async def _json(
        self, path: str, timeout_s: float, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        try:
            async with self._get(path, timeout_s, headers) as response:
                raw = await response.read()
                if response.status != 200:
                    raise UpstreamError(f"{path} answered {response.status}")
                data = orjson.loads(raw)
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise UpstreamError(f"{path}: {type(error).__name__}: {error}") from None
        if not isinstance(data, dict):
            raise UpstreamError(f"{path} answered no JSON object")
        return data

    def _get(self, path: str, timeout_s: float, headers: dict[str, str] | None = None) -> Any:
        return self._session.get(
            f"{self.url}{path}",
            headers={**self._auth(), **(headers or {})},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )

    def _auth(self) -> dict[str, str]:
        return {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key}"}


def response_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """An instance's headers as they are passed to the client."""
    own = {"content-length", "date", "server", "x-request-id"}
    dropped = (HOP_HEADERS | own) - {"content-encoding"}
    return [(k, v) for k, v in headers if k.lower() not in dropped]


def _card(card: dict[str, Any]) -> ModelCard:
    root, parent = card.get("root"), card.get("parent")
    return ModelCard(
        str(card["id"]),
        _positive(card.get("max_model_len")),
        root if isinstance(root, str) else None,
        parent if isinstance(parent, str) else None,
    )


def _positive(value: Any) -> int | None:
    valid = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if valid else None


def _passes(name: str) -> bool:
    key = name.lower()
    if key in HOP_HEADERS or key == "x-request-id":
        return False
    return not key.startswith(INTERNAL_HEADERS) or key in PASSED_INTERNAL
