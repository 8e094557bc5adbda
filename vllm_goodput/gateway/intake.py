# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From an HTTP request to what the router needs: body, SLO, lengths. Everything wrong here is a 400."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError

from vllm_goodput.errors import BadRequestError, RequestError
from vllm_goodput.gateway.lengths import Lengths
from vllm_goodput.gateway.prefix_keys import prefix_blocks
from vllm_goodput.gateway.prompt_len import PromptLengths
from vllm_goodput.predictor.view import max_tokens_of
from vllm_goodput.router import RequestInfo
from vllm_goodput.slo import SLO, internal_fields, request_slo

MAX_REQUEST_ID_LEN = 128
BODY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Intake:
    """A parsed request.

    Args:
        raw: body bytes to send on.
        body: the same, decoded.
        chat: whether it is a chat completion.
        info: for the router.
        request_id: the caller's or a new one; unlike info.request_id it need not be unique.
        choices: answers asked for; usage counts their tokens together.
    """

    raw: bytes
    body: Mapping[str, Any]
    chat: bool
    info: RequestInfo
    request_id: str
    choices: int = 1


@dataclass(frozen=True)
class Known:
    """What the gateway knows that helps to read a request.

    Args:
        slo: default objectives.
        prompt_lens: estimates prompt tokens.
        context_len: model name asked for, or None -> tokens of its context, or None.
        lengths: makes what the length predictor wants to see.
        model_key: model name asked for -> its name in the keys of prompts; None: prompts get no keys.
    """

    slo: SLO
    prompt_lens: PromptLengths
    context_len: Callable[[str | None], int | None]
    lengths: Lengths
    model_key: Callable[[str | None], str | None] | None = None


async def take(request: web.Request, known: Known, arrival_s: float) -> Intake:
    """Read and check a generation request; see `parse`."""
    raw, body = await read_body(request)
    chat = request.path.endswith("/chat/completions")
    return parse(request.headers, raw, body, chat, known, arrival_s)


def parse(
    headers: Mapping[str, str],
    raw: bytes,
    body: dict[str, Any],
    chat: bool,
    known: Known,
    arrival_s: float,
) -> Intake:
    """Check a generation request.

    Raises:
        BadRequestError: a field is malformed.
        RejectedError: its deadline has passed.
    """
    slo = request_slo(headers.items(), body, known.slo, time.time())
    if internal_fields(body):
        body = _without_internal(body)
        raw = orjson.dumps(body)
    prompt_len = known.prompt_lens.estimate(body, chat)
    max_tokens = max_tokens_of(body, chat)
    model = _model(body)
    context_len = known.context_len(model)
    info = RequestInfo(
        request_id=uuid.uuid4().hex,
        prompt_len=prompt_len,
        arrival_s=arrival_s,
        slo=slo.slo,
        task=slo.task,
        session=slo.session,
        max_tokens=max_tokens,
        model=model,
        streaming=body.get("stream") is True,
        context_left=known.prompt_lens.context_left(body, chat, context_len)
        if context_len
        else None,
        view=known.lengths.view(
            body, chat, prompt_len, max_tokens, known.prompt_lens.tokens_per_char(body)
        ),
        blocks=prefix_blocks(body, chat, prompt_len, known.model_key(model))
        if known.model_key
        else None,
    )
    request_id = _request_id(headers, info.request_id)
    return Intake(raw, body, chat, info, request_id, _choices(body, chat))


async def read_body(request: web.Request) -> tuple[bytes, dict[str, Any]]:
    """The body of a request, raw and decoded.

    Raises:
        RequestError: it does not arrive, or is no JSON object.
    """
    raw = await _read(request)
    return raw, _decode(raw)


async def _read(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {BODY_TIMEOUT_S:g} s", status=408, code="body_timeout"
        ) from None
    except (web.RequestPayloadError, aiohttp.ClientPayloadError, ContentEncodingError) as error:
        raise BadRequestError(
            "body", f"readable ({error})", request.headers.get("Content-Encoding")
        ) from None


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequestError("body", f"valid JSON ({error})", raw[:40]) from None
    if not isinstance(body, dict):
        raise BadRequestError("body", "a JSON object", body)
    return body


def _without_internal(body: dict[str, Any]) -> dict[str, Any]:
    """Drop fields that only the pool itself may set."""
    reserved = set(internal_fields(body))
    xargs = {k: v for k, v in body["vllm_xargs"].items() if k not in reserved}
    return {**body, "vllm_xargs": xargs}


def _choices(body: Mapping[str, Any], chat: bool) -> int:
    """Answers asked for: n for each prompt. What is malformed is left to vLLM to refuse."""
    n, prompt = body.get("n"), body.get("prompt")
    each = n if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1
    several = not chat and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    return each * len(prompt) if several and prompt else each


def _model(body: Mapping[str, Any]) -> str | None:
    model = body.get("model")
    if model is None or model == "":
        return None
    if not isinstance(model, str):
        raise BadRequestError("model", "a string", model)
    return model


def _request_id(headers: Mapping[str, str], fallback: str) -> str:
    value = headers.get("x-request-id")
    if not value:
        return fallback
    if len(value) > MAX_REQUEST_ID_LEN or not value.isprintable():
        raise BadRequestError(
            "x-request-id", f"printable, at most {MAX_REQUEST_ID_LEN} characters", value
        )
    return value
