# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Reading and writing traces.

Three formats, told apart by their columns: the Azure LLM inference CSV, Mooncake's JSONL with one hash id per
512-token block, and our own JSONL (one `TraceRow` a line). Limits: media cannot be replayed yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson

from vllm_goodput.bench.formats import PARSERS, detect
from vllm_goodput.bench.row import TraceRow, rebased, trace_duration_s
from vllm_goodput.bench.selection import Selection
from vllm_goodput.errors import TraceError

TraceFormat = Literal["auto", "azure", "mooncake", "goodput"]

__all__ = [
    "TraceFormat",
    "TraceRow",
    "load_trace",
    "trace_duration_s",
    "trace_sha256",
    "write_trace",
]


def load_trace(
    path: str | Path, *, format: TraceFormat = "auto", selection: Selection | None = None
) -> list[TraceRow]:
    """Read a trace: rows sorted by arrival, the first at 0 s.

    Args:
        path: the file.
        format: its format; `auto` looks at the suffix and the first line.
        selection: a `Selection` to apply, or None for the whole trace.

    Raises:
        TraceError: the file is unreadable, empty or malformed; names the file, line, field and value.
        ConfigError: the selection cannot be applied.
    """
    lines = _lines(Path(path))
    if not lines:
        raise TraceError(f"{path}: the trace is empty")
    kind = detect(str(path), *lines[0]) if format == "auto" else format
    rows = rebased(PARSERS[kind](str(path), iter(lines)))
    if not rows:
        raise TraceError(f"{path}: the trace has no rows")
    return rows if selection is None else selection.apply(rows, str(path))


def trace_sha256(path: str | Path) -> str:
    """Hex digest of the file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_trace(rows: Iterable[TraceRow], path: str | Path) -> int:
    """Write rows as our JSONL (`prefix_ids`, which it has no key for, are dropped); returns their number.

    Raises:
        TraceError: the file cannot be written.
    """
    count = 0
    try:
        with open(path, "wb") as file:
            for row in rows:
                file.write(orjson.dumps(_as_dict(row)) + b"\n")
                count += 1
    except OSError as error:
        raise TraceError(f"{path}: cannot write: {error.strerror}") from None
    return count


def _as_dict(row: TraceRow) -> dict[str, Any]:
    fields: dict[str, Any] = {"arrival_s": round(row.arrival_s, 6)}
    fields |= {k: v for k in ("task", "session") if (v := getattr(row, k)) is not None}
    if row.prompt is not None:
        fields["prompt"] = row.prompt
    if row.messages is not None:
        fields["messages"] = [{"role": role, "content": text} for role, text in row.messages]
    fields |= {"prompt_len": row.prompt_len, "output_len": row.output_len}
    if row.slo:
        fields["slo"] = row.slo.as_dict()
    return fields


def _lines(path: Path) -> list[tuple[int, str]]:
    """The numbered lines that are not blank."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot read the trace: {error.strerror}") from None
    return [(number, text) for number, text in _decoded(path, raw) if text.strip()]


def _decoded(path: Path, raw: bytes) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            yield number, line.decode().rstrip("\r")
        except UnicodeDecodeError as error:
            raise TraceError(f"{path}:{number}: not UTF-8 text: {error.reason}") from None
