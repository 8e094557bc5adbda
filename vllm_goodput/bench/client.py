# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One request against an OpenAI-compatible server, timed.

A streamed answer counts as whole only if it ends with `[DONE]` and carries no error event.
"""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from vllm_goodput.bench.record import Record
from vllm_goodput.bench.row import TraceRow
from vllm_goodput.bench.sse import SSEEvent, SSEParser

MAX_ERROR_LEN = 300
MAX_COUNT = 10**9
TRAILER_TIMEOUT_S = 1.0
_GOODPUT_FIELD = re.compile(r"(x-goodput-[a-z0-9-]+)\s*[:=]\s*(\S.*)", re.IGNORECASE)


@dataclass(slots=True)
class Exchange:
    """A request under way and what has come back so far; times are of `time.perf_counter`.

    Args:
        index: place in the replayed trace.
        row: the request.
        request_id: its `x-request-id`.
        start_s: when the run started.
    """

    index: int
    row: TraceRow
    request_id: str
    start_s: float
    sent_s: float = 0.0
    last_token_s: float | None = None
    ttft_s: float | None = None
    end_s: float | None = None
    status: int | None = None
    done: bool = False
    streamed: bool = False
    chunks: int = 0
    error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    gaps_s: array[float] = field(default_factory=lambda: array("f"))
    info: dict[str, str] = field(default_factory=dict)

    async def run(
        self,
        http: aiohttp.ClientSession,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        stream: bool,
        timeout_s: float,
    ) -> None:
        """Send the request and read its answer; failures end up in `error`."""
        self.sent_s = time.perf_counter()
        try:
            async with http.post(url, data=body, headers=headers) as response:
                self.status = response.status
                self.info |= {
                    name.lower(): value
                    for name, value in response.headers.items()
                    if name.lower().startswith("x-goodput-")
                }
                if response.status != 200:
                    self.error = await _http_error(response)
                elif stream:
                    await self._read_stream(response)
                else:
                    self._read_json(await response.read())
        except TimeoutError:
            self.fail(f"no whole answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.fail(f"{type(error).__name__}: {error}")
        finally:
            self.end_s = self.end_s or time.perf_counter()

    def fail(self, message: str) -> None:
        """Mark the request as failed, unless it ended before."""
        if not self.done and self.error is None:
            self.error = message[:MAX_ERROR_LEN]

    async def _read_stream(self, response: aiohttp.ClientResponse) -> None:
        parser = SSEParser()
        self.streamed = True
        async with asyncio.timeout(None) as limit:
            async for chunk in response.content.iter_any():
                now_s = time.perf_counter()
                for event in parser.feed(chunk):
                    self._take(event, now_s)
                if self.done:  # a last comment may follow, but do not wait long for it
                    limit.reschedule(asyncio.get_running_loop().time() + TRAILER_TIMEOUT_S)
        for event in parser.close():
            self._take(event, time.perf_counter())
        if not self.done:
            self.fail(f"the stream ({response.content_type}) ended without [DONE]")

    def _take(self, event: SSEEvent, now_s: float) -> None:
        if event.comment:
            if match := _GOODPUT_FIELD.fullmatch(event.data.strip()):
                self.info[match[1].lower()] = match[2]
            return
        if event.data == "[DONE]":
            self.done, self.end_s = True, now_s
            return
        try:
            data = orjson.loads(event.data)
        except orjson.JSONDecodeError:
            self.error = self.error or f"not JSON in the stream: {event.data!r:.100}"
            return
        if error := _error_in(data, event.event):
            self.error = self.error or error
        else:
            self._take_answer(data, now_s)

    def _take_answer(self, data: Mapping[str, Any], now_s: float) -> None:
        if isinstance(data.get("usage"), dict):
            self.usage = data["usage"]
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        if choices[0].get("finish_reason") in ("abort", "error"):
            self.error = self.error or f"finish_reason {choices[0]['finish_reason']}"
        if _is_role_only(choices[0]):
            return
        self.chunks += 1
        if self.last_token_s is None:
            self.ttft_s = now_s - self.sent_s
        else:
            self.gaps_s.append(now_s - self.last_token_s)
        self.last_token_s = now_s

    def _read_json(self, raw: bytes) -> None:
        now_s = time.perf_counter()
        try:
            data = orjson.loads(raw)
        except orjson.JSONDecodeError:
            self.fail(f"not JSON: {raw[:100]!r}")
            return
        if error := _error_in(data, ""):
            self.fail(error)
            return
        self._take_answer(data, now_s)
        if self.chunks:
            self.done, self.end_s = True, now_s
        else:
            self.fail(f"no choices in the answer: {raw[:100]!r}")

    def record(self) -> Record:
        """The outcome; times relative to the start of the run."""
        completed = self.done and self.error is None and self.chunks > 0
        if self.done and not completed:
            self.error = self.error or "the stream carried no token"
        e2el_s = None if self.end_s is None or not completed else self.end_s - self.sent_s
        tokens = _count(self.usage.get("completion_tokens"), self.chunks)
        tpot_s = None
        if self.streamed and e2el_s is not None and self.ttft_s is not None and tokens > 1:
            tpot_s = (e2el_s - self.ttft_s) / (tokens - 1)
        return Record(
            index=self.index,
            arrival_s=self.row.arrival_s,
            prompt_len=_count(self.usage.get("prompt_tokens"), self.row.prompt_len),
            output_len=self.row.output_len,
            slo=self.row.slo,
            task=self.row.task,
            session=self.row.session,
            request_id=self.request_id,
            late_s=max(0.0, self.sent_s - self.start_s - self.row.arrival_s),
            finished_s=None if self.end_s is None else self.end_s - self.start_s,
            status=self.status,
            completed=completed,
            reject_reason=self._reject_reason(),
            error=None if completed else self.error,
            ttft_s=self.ttft_s,
            tpot_s=tpot_s,
            e2el_s=e2el_s,
            itl_s=self.gaps_s,
            output_tokens=tokens,
            instance=self.info.get("x-goodput-instance"),
            predicted_e2el_ms=_milliseconds(self.info.get("x-goodput-predicted-e2el-ms")),
            migrations=_count(self.info.get("x-goodput-migrations"), 0),
        )

    def _reject_reason(self) -> str | None:
        return None if self.status == 200 else self.info.get("x-goodput-reject-reason")


def _is_role_only(choice: Mapping[str, Any]) -> bool:
    """Whether a chat chunk merely opens the message, which some servers send before any token exists."""
    delta = choice.get("delta")
    if not isinstance(delta, dict) or choice.get("finish_reason"):
        return False
    return "role" in delta and not any(v for k, v in delta.items() if k != "role")


def _error_in(data: Any, event: str) -> str | None:
    """The message of an error object, in the OpenAI shape or vLLM's older one."""
    if not isinstance(data, dict):
        return f"not an object in the answer: {data!r:.100}"
    error = data.get("error")
    if error is None and (event == "error" or data.get("object") == "error"):
        error = data
    if error is None:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return f"error in the answer: {message}"[:MAX_ERROR_LEN]


async def _http_error(response: aiohttp.ClientResponse) -> str:
    raw = await response.content.read(65536)
    try:
        message = _error_in(orjson.loads(raw), "error")
    except orjson.JSONDecodeError:
        message = raw.decode(errors="replace").strip()
    text = (message or response.reason or "").removeprefix("error in the answer: ")
    return f"HTTP {response.status}: {text}"[:MAX_ERROR_LEN]


def _count(value: object, default: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:12])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        return default
    return value


def _milliseconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
