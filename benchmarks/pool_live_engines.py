# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the engines themselves say of a cell of `benchmarks.pool_live`: shares, prefix cache hits, emulation overruns.

Counters are read before and after a cell; routers do not matter to them. A server that lacks one of the endpoints
(vLLM's `/metrics`, the plugin's `/goodput/v1/info`) leaves the figures at zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families

from vllm_goodput.emulation import MAX_VALID_OVERRUN_FRACTION
from vllm_goodput.errors import DeployError
from vllm_goodput.instance.auth import SECRET_HEADER
from vllm_goodput.instance.notes import emulation_note

TIMEOUT_S = 10.0
POLL_S = 0.5
# Field below, and the sample of vLLM that it sums.
SAMPLES = {
    "vllm:request_success_total": "finished",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:prefix_cache_hits_total": "cached_tokens",
    "vllm:num_requests_running": "open",
    "vllm:num_requests_waiting": "open",
}


@dataclass(frozen=True)
class Counters:
    """Of one engine since its start; `open` is now."""

    finished: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    open: float = 0.0
    steps: float = 0.0
    overruns: float = 0.0
    overrun_s: float = 0.0

    def since(self, earlier: Counters) -> Counters:
        """What has come in between."""
        return Counters(
            **{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        )

    @property
    def overrun_fraction(self) -> float:
        """Steps that were slower than the emulated device, of all."""
        return self.overruns / self.steps if self.steps else 0.0

    @property
    def valid(self) -> bool:
        """Whether the emulation was."""
        return self.overrun_fraction <= MAX_VALID_OVERRUN_FRACTION

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {
            name: value if name == "overrun_s" else int(value)
            for name, value in asdict(self).items()
            if name != "open"
        }
        return counts | {"overrun_fraction": self.overrun_fraction, "valid": self.valid}


class Engines:
    """The instances, by name.

    Args:
        urls: their base URLs.
        secret: the pool's, or None.
    """

    def __init__(self, urls: Mapping[str, str], secret: str | None = None) -> None:
        self.urls = dict(urls)
        self._headers = {SECRET_HEADER: secret} if secret else {}
        self._emulated: dict[str, dict[str, Any]] = {}

    async def require_alive(self) -> None:
        """Make sure that every engine answers.

        Raises:
            DeployError: one does not; what is measured without it is worthless.
        """
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for name, url in self.urls.items():
                if not await _answers(session, f"{url}/health"):
                    raise DeployError(f"engine {name} does not answer; see its log")

    async def counters(self) -> dict[str, Counters]:
        """Of every engine."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            found = await asyncio.gather(*(self._one(session, name) for name in self.urls))
        return dict(zip(self.urls, found, strict=True))

    async def until_idle(self, timeout_s: float) -> bool:
        """Wait until no engine has a request; false if one still has after the time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while any(c.open for c in (await self.counters()).values()):
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def notes(self, counters: Mapping[str, Counters]) -> list[str]:
        """What a report of figures measured here must say of the emulation, by engine."""
        notes = (
            emulation_note(name, {"emulation": self._emulated[name] | counters[name].as_dict()})
            for name in self.urls
            if name in self._emulated
        )
        return [note for note in notes if note is not None]

    async def _one(self, session: aiohttp.ClientSession, name: str) -> Counters:
        values: dict[str, float] = {}
        for line in text_string_to_metric_families(
            await _get(session, f"{self.urls[name]}/metrics")
        ):
            for sample in line.samples:
                if (field := SAMPLES.get(sample.name)) is not None:
                    values[field] = values.get(field, 0.0) + sample.value
        info = await self._info(session, name)
        for field in ("steps", "overruns", "overrun_s"):
            values[field] = float(info.get(field, 0.0))
        return Counters(**values)

    async def _info(self, session: aiohttp.ClientSession, name: str) -> dict[str, Any]:
        text = await _get(session, f"{self.urls[name]}/goodput/v1/info", self._headers)
        emulation = orjson.loads(text).get("emulation") if text else None
        if not isinstance(emulation, dict):
            return {}
        self._emulated[name] = emulation
        return emulation


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


async def _get(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None
) -> str:
    """The answer's text; empty when there is none."""
    try:
        async with session.get(url, headers=headers) as response:
            return await response.text() if response.status == 200 else ""
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ""
