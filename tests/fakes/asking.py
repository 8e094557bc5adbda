# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The gateway's guarded endpoints, asked with the pool's secret."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from vllm_goodput.instance.auth import SECRET_HEADER

SECRET = "pool-secret"
HEADERS = {SECRET_HEADER: SECRET}


async def explain(
    session: aiohttp.ClientSession,
    body: Any,
    headers: dict[str, str] | None = None,
    path: str | None = None,
) -> tuple[int, dict[str, Any]]:
    """(status, answer) of /goodput/v1/explain."""
    query = {} if path is None else {"path": path}
    async with session.post(
        "/goodput/v1/explain", json=body, headers={**HEADERS, **(headers or {})}, params=query
    ) as response:
        return response.status, json.loads(await response.read())


async def hits(session: aiohttp.ClientSession, body: Any) -> dict[str, float]:
    """Predicted prefix hits of a body, tokens, by instance."""
    status, answer = await explain(session, body)
    assert status == 200, answer
    return {one["name"]: one["hit_tokens"] for one in answer["instances"]}


async def pool_page(session: aiohttp.ClientSession) -> dict[str, dict[str, Any]]:
    """Instances of /goodput/v1/pool by name."""
    async with session.get("/goodput/v1/pool", headers=HEADERS) as response:
        assert response.status == 200
        return {one["name"]: one for one in (await response.json())["instances"]}
