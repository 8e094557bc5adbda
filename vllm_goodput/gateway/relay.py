# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One attempt on one instance: send the request on, pass the answer through, report what happened to the router."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable
from dataclasses import dataclass

import aiohttp
import orjson
from aiohttp import web

from vllm_goodput.errors import RejectedError, RequestError
from vllm_goodput.gateway.intake import Intake
from vllm_goodput.gateway.meter import StreamMeter, body_usage, usage_cached, usage_tokens
from vllm_goodput.gateway.upstream import Upstream, response_headers
from vllm_goodput.router import Dispatch, Router

RETRY_STATUS = frozenset({429, 502, 503})
SLOW_CLIENT_S = 0.05
CONNECTION_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)


class AttemptFailed(Exception):
    """The instance failed before the client got a byte; another may be tried.

    Args:
        message: for the log.
        unreachable: no connection could be made.
        disconnected: the connection closed without an answer; it may have been an idle one just timing out.
        answer: the instance's own answer, if it was one that says to try elsewhere.
    """

    def __init__(
        self,
        message: str,
        unreachable: bool = False,
        disconnected: bool = False,
        answer: web.Response | None = None,
    ) -> None:
        super().__init__(message)
        self.unreachable = unreachable
        self.disconnected = disconnected
        self.answer = answer


@dataclass
class Outcome:
    """How an attempt ended; times are seconds on the event loop's clock."""

    status: int = 0
    complete: bool = False
    first_s: float | None = None
    end_s: float = 0.0
    output_len: int = 0
    prompt_len: int | None = None
    cached_len: int | None = None  # prompt tokens from the prefix cache, where the instance tells
    timed: bool = True  # whether the timing tells the instance's speed


class Relay:
    """Attempts of one request. The router has been told of the dispatch; here it is told of the end, exactly once."""

    def __init__(self, request: web.Request, intake: Intake, router: Router) -> None:
        self._request = request
        self._intake = intake
        self._router = router

    async def run(
        self, upstream: Upstream, dispatch: Dispatch
    ) -> tuple[web.StreamResponse, Outcome]:
        """Attempt the request on an instance.

        Raises:
            AttemptFailed: nothing has been sent to the client yet.
        """
        outcome = Outcome()
        try:
            response = await self._attempt(upstream, dispatch, outcome)
        finally:
            outcome.end_s = time.monotonic()
            self._report(outcome)
        return response, outcome

    async def _attempt(
        self, upstream: Upstream, dispatch: Dispatch, outcome: Outcome
    ) -> web.StreamResponse:
        request, intake = self._request, self._intake
        own = self._own_headers(dispatch)
        answer: aiohttp.ClientResponse | None = None
        try:
            async with upstream.guard():
                answer = await upstream.post(
                    request.path_qs, intake.raw, request.headers.items(), intake.request_id
                )
                outcome.status = answer.status
                streaming = answer.content_type == "text/event-stream"
                # Until the client gets a byte, another instance may be tried.
                start = await (answer.content.readany() if streaming else answer.read())
            if streaming:
                return await self._stream(upstream, answer, start, own, outcome)
            response = _whole(answer, start, own, outcome)
            outcome.output_len = self._each(outcome.output_len)
            if answer.status in RETRY_STATUS:
                raise AttemptFailed(f"answered {answer.status}", answer=response)
            return response
        except CONNECTION_ERRORS as error:
            raise _failure(error) from None
        finally:
            if answer is not None:
                answer.release()

    async def _stream(
        self,
        upstream: Upstream,
        answer: aiohttp.ClientResponse,
        chunk: bytes,
        own: dict[str, str],
        outcome: Outcome,
    ) -> web.StreamResponse:
        meter = StreamMeter()
        response = web.StreamResponse(status=answer.status)
        for name, value in (*response_headers(answer.headers.items()), *own.items()):
            response.headers.add(name, value)
        await _to_client(response.prepare(self._request))
        try:
            while chunk:
                self._note(meter, chunk, outcome)
                await self._pass_on(response, chunk, outcome)
                async with upstream.guard():
                    chunk = await answer.content.readany()
        except CONNECTION_ERRORS:
            pass  # told to the client below
        outcome.output_len = self._each(meter.output_len)
        outcome.prompt_len = meter.prompt_len
        outcome.cached_len = meter.cached_len
        outcome.complete = meter.done and not meter.error
        if not meter.done:
            await _to_client(response.write(_CUT_SHORT))
        await _to_client(response.write_eof())
        return response

    async def _pass_on(self, response: web.StreamResponse, chunk: bytes, outcome: Outcome) -> None:
        started_s = time.monotonic()
        await _to_client(response.write(chunk))
        if time.monotonic() - started_s > SLOW_CLIENT_S:
            outcome.timed = False  # what comes next was delayed by the client, not by the instance

    def _note(self, meter: StreamMeter, chunk: bytes, outcome: Outcome) -> None:
        before = meter.events
        meter.feed(chunk)
        if meter.events == before:
            return
        now_s = time.monotonic()
        request_id = self._intake.info.request_id
        if outcome.first_s is None:
            outcome.first_s = now_s
            self._router.on_first_token(request_id, now_s)
        self._router.on_progress(request_id, self._each(meter.events), now_s)

    def _each(self, tokens: int) -> int:
        """Tokens of one answer where the request asks for several, which are counted together."""
        return -(-tokens // self._intake.choices)

    def _report(self, outcome: Outcome) -> None:
        request_id = self._intake.info.request_id
        if outcome.complete:
            self._router.on_finished(request_id, outcome.output_len, outcome.end_s, outcome.timed)
        else:
            self._router.on_failed(request_id, outcome.end_s)

    def _own_headers(self, dispatch: Dispatch) -> dict[str, str]:
        waited_s = time.monotonic() - self._intake.info.arrival_s
        predicted_ms = (waited_s + dispatch.prediction.e2el_s) * 1e3
        return {
            "x-request-id": self._intake.request_id,
            "x-goodput-instance": dispatch.instance,
            "x-goodput-predicted-e2el-ms": f"{predicted_ms:.0f}",
        }


def _whole(
    answer: aiohttp.ClientResponse, body: bytes, own: dict[str, str], outcome: Outcome
) -> web.Response:
    response = web.Response(body=body, status=answer.status)
    response.headers.clear()
    for name, value in (*response_headers(answer.headers.items()), *own.items()):
        response.headers.add(name, value)
    if answer.status < 400:
        usage = body_usage(body)
        outcome.output_len = usage_tokens(usage, "completion_tokens") or 1
        outcome.prompt_len = usage_tokens(usage, "prompt_tokens")
        outcome.cached_len = usage_cached(usage)
        outcome.complete = True
    return response


def _failure(error: BaseException) -> AttemptFailed:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise RejectedError("saturated", "the gateway has too many files open") from None
    return AttemptFailed(
        text,
        unreachable=isinstance(error, aiohttp.ClientConnectorError),
        disconnected=isinstance(error, aiohttp.ServerDisconnectedError),
    )


class ClientGoneError(Exception):
    """The client closed its connection; the upstream request is closed with it."""


async def _to_client(sending: Awaitable[object]) -> None:
    try:
        await sending
    except (ConnectionError, aiohttp.ClientConnectionError):
        raise ClientGoneError from None


_ERROR = RequestError(
    "the instance ended the stream before it was complete", status=502, code="upstream_failed"
)
_CUT_SHORT = b"data: " + orjson.dumps(_ERROR.body()) + b"\n\n"
