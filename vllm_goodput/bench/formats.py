# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Parsers of the trace formats, and telling them apart.

Each takes the file's name and its numbered non-blank lines and yields rows in file order. Foreign formats may carry
more columns than we read; in our own an unknown key is an error.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

import orjson

from vllm_goodput.bench.row import CHARS_PER_TOKEN, TraceRow
from vllm_goodput.errors import ConfigError, TraceError
from vllm_goodput.slo import MAX_LABEL_LEN, METRICS, SLO

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
GOODPUT_KEYS = frozenset(
    [
        "arrival_s",
        "task",
        "session",
        "prompt",
        "messages",
        "prompt_len",
        "output_len",
        "media",
        "slo",
    ]
)
MAX_TOKENS = 10**8
MAX_ARRIVAL_S = 1e9
Lines = Iterable[tuple[int, str]]


def detect(path: str, number: int, first_line: str) -> str:
    """Name of the format that `first_line` belongs to.

    Raises:
        TraceError: none of them.
    """
    if first_line.startswith("TIMESTAMP,") or path.lower().endswith(".csv"):
        return "azure"
    keys = _json_object(path, number, first_line).keys()
    if "timestamp" in keys and "input_length" in keys:
        return "mooncake"
    if "arrival_s" in keys:
        return "goodput"
    raise TraceError(
        f"{path}:{number}: cannot tell the trace's format from the keys {sorted(keys)}; expected arrival_s "
        "(goodput), timestamp and input_length (mooncake) or a TIMESTAMP column (azure)"
    )


def parse_azure(path: str, lines: Lines) -> Iterator[TraceRow]:
    """Azure's CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`, times in UTC."""
    numbered = iter(lines)
    header_number, header_text = next(numbered)
    header = next(csv.reader([header_text]))
    for column in AZURE_COLUMNS:
        if column not in header:
            raise TraceError(f"{path}:{header_number}: no column {column!r} in the header {header}")
    for number, text in numbered:
        cells = next(csv.reader([text]))
        if len(cells) != len(header):
            raise TraceError(
                f"{path}:{number}: expected {len(header)} columns, got {len(cells)} in {text!r:.80}"
            )
        line = _Line(path, number, dict(zip(header, cells, strict=True)))
        yield TraceRow(
            arrival_s=line.timestamp("TIMESTAMP"),
            prompt_len=line.count("ContextTokens", decimal=True),
            output_len=line.count("GeneratedTokens", decimal=True),
        )


def parse_mooncake(path: str, lines: Lines) -> Iterator[TraceRow]:
    """Mooncake's JSONL: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`."""
    for number, text in lines:
        line = _Line(path, number, _json_object(path, number, text))
        yield TraceRow(
            arrival_s=line.seconds("timestamp", scale=1e-3),
            prompt_len=line.count("input_length"),
            output_len=line.count("output_length"),
            prefix_ids=tuple(line.ids("hash_ids")) if "hash_ids" in line.fields else None,
        )


def parse_goodput(path: str, lines: Lines) -> Iterator[TraceRow]:
    """Our JSONL: one `TraceRow` a line, times in seconds."""
    for number, text in lines:
        line = _Line(path, number, _json_object(path, number, text))
        line.only(GOODPUT_KEYS, "")
        if line.fields.get("media"):
            raise TraceError(f"{path}:{number}: media: media replay isn't supported yet")
        messages = line.messages()
        prompt, prompt_len = line.prompt() if messages is None else (None, line.length(messages))
        yield TraceRow(
            arrival_s=line.seconds("arrival_s"),
            task=line.label("task"),
            session=line.label("session"),
            prompt=prompt,
            messages=messages,
            prompt_len=prompt_len,
            output_len=line.count("output_len"),
            slo=line.slo(),
        )


PARSERS: dict[str, Callable[[str, Lines], Iterator[TraceRow]]] = {
    "azure": parse_azure,
    "mooncake": parse_mooncake,
    "goodput": parse_goodput,
}


@dataclass(frozen=True)
class _Line:
    """The fields of one line, read with errors that name file, line, field and value."""

    path: str
    number: int
    fields: Mapping[str, Any]

    def fail(self, field: str, requirement: str, value: object) -> NoReturn:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise TraceError(
            f"{self.path}:{self.number}: {field} must be {requirement}, got {shown}"
        ) from None

    def require(self, field: str) -> Any:
        if field not in self.fields:
            raise TraceError(f"{self.path}:{self.number}: {field} is missing")
        return self.fields[field]

    def only(self, allowed: Iterable[str], prefix: str, within: Any = None) -> None:
        for key in self.fields if within is None else within:
            if key not in allowed:
                raise TraceError(f"{self.path}:{self.number}: unknown key {prefix + str(key)!r}")

    def seconds(self, field: str, scale: float = 1.0) -> float:
        value = self.require(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(field, "a number", value)
        time_s = value * scale
        if not (math.isfinite(time_s) and 0 <= time_s <= MAX_ARRIVAL_S):
            self.fail(field, f"from 0 to {MAX_ARRIVAL_S:g} seconds", value)
        return float(time_s)

    def timestamp(self, field: str) -> float:
        value = self.require(field)
        try:
            at = datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(field, "a time such as 2023-11-16 18:17:03.9799600", value)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

    def count(self, field: str, *, decimal: bool = False) -> int:
        value = self.require(field)
        number = value
        if decimal and value.strip().isascii() and value.strip().isdecimal():
            number = int(value[:20])
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_TOKENS:
            self.fail(field, f"a whole number from 1 to {MAX_TOKENS}", value)
        return number

    def ids(self, field: str, *, what: str = "a list of whole numbers >= 0") -> list[int]:
        value = self.require(field)
        if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
            self.fail(field, what, value)
        return value

    def label(self, field: str) -> str | None:
        value = self.fields.get(field)
        if value is None:
            return None
        if not isinstance(value, str) or not value or len(value) > MAX_LABEL_LEN:
            self.fail(field, f"a string of 1 to {MAX_LABEL_LEN} characters", value)
        if not value.isprintable():
            self.fail(field, "printable", value)
        return value

    def prompt(self) -> tuple[str | list[int] | None, int]:
        """The prompt, if the row has one, and its length in tokens."""
        value = self.fields.get("prompt")
        given = None if self.fields.get("prompt_len") is None else self.count("prompt_len")
        if value is None:
            return None, self.count("prompt_len") if given is None else given
        if isinstance(value, str):
            if not value:
                self.fail("prompt", "text or token ids that are not empty", value)
            return value, given or math.ceil(len(value) / CHARS_PER_TOKEN)
        ids = self.ids("prompt", what="text or a list of token ids")
        if not ids:
            self.fail("prompt", "text or token ids that are not empty", value)
        if given not in (None, len(ids)):
            self.fail("prompt_len", f"the prompt's {len(ids)} tokens", given)
        return ids, len(ids)

    def messages(self) -> tuple[tuple[str, str], ...] | None:
        """The conversation, if the row has one."""
        value = self.fields.get("messages")
        if value is None:
            return None
        if self.fields.get("prompt") is not None:
            self.fail("messages", "absent where there is a prompt", value)
        pairs = [
            (item.get("role"), item.get("content")) if isinstance(item, dict) else (None, None)
            for item in (value if isinstance(value, list) else ())
        ]
        if not pairs or not all(isinstance(a, str) and isinstance(b, str) for a, b in pairs):
            self.fail("messages", "a list of {role, content} objects with text in both", value)
        return tuple((str(role), str(content)) for role, content in pairs)

    def length(self, messages: tuple[tuple[str, str], ...]) -> int:
        """Prompt tokens of a conversation: as stated, else estimated."""
        if self.fields.get("prompt_len") is not None:
            return self.count("prompt_len")
        return max(1, math.ceil(sum(len(content) for _, content in messages) / CHARS_PER_TOKEN))

    def slo(self) -> SLO:
        value = self.fields.get("slo")
        if value is None:
            return SLO()
        if not isinstance(value, dict):
            self.fail("slo", "an object such as {'e2el_ms': 20000}", value)
        self.only([f"{metric}_ms" for metric in METRICS], "slo.", value)
        try:
            return SLO(**value)
        except ConfigError as error:
            raise TraceError(f"{self.path}:{self.number}: slo: {error}") from None


def _json_object(path: str, number: int, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{path}:{number}: not JSON: {error} in {text!r:.80}") from None
    if not isinstance(value, dict):
        raise TraceError(f"{path}:{number}: expected a JSON object, got {text!r:.80}")
    return value
