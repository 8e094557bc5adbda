# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What is asked of the server before the replay: the model's name, and a goodput gateway's notes."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson

from vllm_goodput.bench.options import ReplayOptions
from vllm_goodput.errors import ConfigError

PREFLIGHT_TIMEOUT_S = 30.0
NOTES_PATH = "/goodput/v1/notes"


async def resolve_model(http: aiohttp.ClientSession, options: ReplayOptions) -> str:
    """The model to name in requests; asks the server even when it is given, to see that it answers.

    Raises:
        ConfigError: the server cannot be reached, or names no model.
    """
    url = f"{options.base_url}/v1/models"
    try:
        status, raw = await _get(http, url, options)
    except TimeoutError:
        raise ConfigError(
            f"{options.public_url} did not answer within {PREFLIGHT_TIMEOUT_S:g} s"
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise ConfigError(f"cannot reach {options.public_url}: {error}") from None
    if options.model is not None:
        return options.model
    if status != 200:
        hint = "; set --api-key" if status in (401, 403) else "; name one with --model"
        raise ConfigError(f"{options.public_url}/v1/models answered HTTP {status}{hint}")
    name = _first_model(raw)
    if name is None:
        raise ConfigError(f"{options.public_url}/v1/models lists no model; name one with --model")
    return name


async def server_notes(options: ReplayOptions) -> list[str]:
    """Notes of a goodput gateway or instance ("emulated ..."); none from any other server.

    Asked after a run, so that they tell how valid the emulation was in it.
    """
    async with aiohttp.ClientSession() as http:
        return await _notes(http, options)


async def _notes(http: aiohttp.ClientSession, options: ReplayOptions) -> list[str]:
    try:
        status, raw = await _get(http, options.base_url + NOTES_PATH, options)
        data = orjson.loads(raw) if status == 200 else {}
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError):
        return []
    notes = data.get("notes") if isinstance(data, dict) else None
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


async def preflight(options: ReplayOptions) -> str:
    """The model's name, from a server that answers.

    Raises:
        ConfigError: as `resolve_model`.
    """
    async with aiohttp.ClientSession() as http:
        return await resolve_model(http, options)


async def _get(http: aiohttp.ClientSession, url: str, options: ReplayOptions) -> tuple[int, bytes]:
    headers = dict(options.headers)
    if options.api_key and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer {options.api_key}"
    async with asyncio.timeout(min(PREFLIGHT_TIMEOUT_S, options.timeout_s)):
        async with http.get(url, headers=headers) as response:
            return response.status, await response.read()


def _first_model(raw: bytes) -> str | None:
    try:
        data: Any = orjson.loads(raw)
        name = data["data"][0]["id"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None
    return name if isinstance(name, str) else None
