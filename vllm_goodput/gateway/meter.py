# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Counts what passes through: events, tokens and the end of an answer, without changing a byte."""

from __future__ import annotations

from typing import Any

import orjson

MAX_LINE = 16 * 2**20


class StreamMeter:
    """Follows a server-sent event stream fed in arbitrary chunks.

    Each event with content counts as one token until a usage object tells the true number. A line longer than 16 MiB
    is skipped, so memory stays bounded.
    """

    def __init__(self) -> None:
        self.events = 0
        self.done = False
        self.error = False
        self.usage: dict[str, Any] | None = None
        self._line = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._line += line
            self._take(bytes(self._line))
            self._line.clear()
        if len(self._line) + len(rest) <= MAX_LINE:
            self._line += rest

    @property
    def output_len(self) -> int:
        """Output tokens: from usage where known, else events."""
        return usage_tokens(self.usage, "completion_tokens") or self.events

    @property
    def prompt_len(self) -> int | None:
        """Prompt tokens, where usage tells."""
        return usage_tokens(self.usage, "prompt_tokens")

    @property
    def cached_len(self) -> int | None:
        """Prompt tokens that came from the prefix cache, where usage tells."""
        return usage_cached(self.usage)

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
        elif data.startswith(b'{"error"'):
            self.error = True
        else:
            if b'"choices":[]' not in data:
                self.events += 1
            if b'"usage":{' in data:
                self.usage = _usage(data) or self.usage


def body_usage(body: bytes) -> dict[str, Any] | None:
    """The usage object of a plain JSON answer."""
    return _usage(body) if b'"usage"' in body else None


def usage_tokens(usage: dict[str, Any] | None, field: str) -> int | None:
    """A token count from a usage object; None where absent or not a count."""
    value = usage.get(field) if usage else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def usage_cached(usage: dict[str, Any] | None) -> int | None:
    """Prompt tokens that came from the prefix cache, from a usage object; None where absent or not a count."""
    details = usage.get("prompt_tokens_details") if usage else None
    value = details.get("cached_tokens") if isinstance(details, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _usage(data: bytes) -> dict[str, Any] | None:
    try:
        decoded = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    usage = decoded.get("usage") if isinstance(decoded, dict) else None
    return usage if isinstance(usage, dict) else None
