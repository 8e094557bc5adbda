# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""An incremental parser of server-sent events (WHATWG HTML, section 9.2) that accepts any chunk boundary."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SSEEvent:
    """One event, or one comment line.

    Args:
        data: the event's data lines joined, or the comment's text.
        event: event type; "" when not given.
        comment: whether this is a comment.
    """

    data: str
    event: str = ""
    comment: bool = False


@dataclass(slots=True)
class SSEParser:
    """Feed it bytes as they come; it returns what they complete."""

    _rest: bytes = b""
    _skip_lf: bool = False
    _data: list[str] = field(default_factory=list)
    _event: str = ""
    _started: bool = False

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Events and comments completed by `chunk`."""
        if not chunk:
            return []
        if self._skip_lf and chunk.startswith(b"\n"):  # the second half of a split CRLF
            chunk = chunk[1:]
        self._skip_lf = chunk.endswith(b"\r") if chunk else False
        text = self._rest + chunk
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        return [event for line in lines if (event := self._line(line)) is not None]

    def close(self) -> list[SSEEvent]:
        """The event cut off by the end of the stream, if any; servers often omit the last blank line."""
        events = self.feed(b"\n\n") if self._rest or self._data else []
        self._rest = b""
        return events

    def _line(self, raw: bytes) -> SSEEvent | None:
        if not self._started:
            self._started = True
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if not raw:
            return self._dispatch()
        name, _, value = raw.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if not name:
            return SSEEvent(value, comment=True)
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        return None

    def _dispatch(self) -> SSEEvent | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return SSEEvent("\n".join(data), event) if data else None
