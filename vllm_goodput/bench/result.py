# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The result of a run: the summary, what produced it, and the requests; plain data that JSON can carry."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from vllm_goodput.bench.measure import finite, summarise
from vllm_goodput.bench.record import Record
from vllm_goodput.bench.replay import LATENESS_LIMIT_S
from vllm_goodput.errors import ConfigError

BENCHMARK = "vllm-goodput bench"


def build_result(
    records: Sequence[Record],
    trace_duration_s: float,
    *,
    settings: Mapping[str, Any] | None = None,
    trace: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    interrupted: bool = False,
    streamed: bool = True,
    exact_lengths: bool = False,
) -> dict[str, Any]:
    """Summary, metadata and per-request rows of one run.

    Args:
        records: one per offered request.
        trace_duration_s: duration of the trace, seconds; of the part that was replayed when interrupted.
        settings: how it was run (url, model and so on); no secrets.
        trace: `{name, sha256, rows}`.
        notes: shown prominently, e.g. "emulated devices: ...".
        interrupted: whether the run was cut short.
        streamed: whether answers were streamed (else TPOT is not measured).
        exact_lengths: whether answers had to be exactly `output_len` long.
    """
    summary = summarise(records, trace_duration_s)
    return {
        "benchmark": BENCHMARK,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": dict(settings or {}),
        "trace": dict(trace or {}),
        "notes": list(dict.fromkeys(notes)),
        "warnings": _warnings(records, summary, interrupted, streamed, exact_lengths),
        "interrupted": interrupted,
        **summary,
        "requests": [finite(record.as_row()) for record in records],
    }


def machine() -> dict[str, Any]:
    """The client's machine."""
    return {
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
    }


def without_requests(result: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without the per-request rows."""
    return {name: value for name, value in result.items() if name != "requests"}


def write_json(result: Mapping[str, Any], path: str | Path) -> None:
    """Write a result to a file, or to standard output for `-`.

    Raises:
        ConfigError: the file cannot be written.
    """
    data = orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a result.

    Raises:
        ConfigError: the file cannot be read or is no result of ours.
    """
    try:
        data = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict) or "request_goodput" not in data or "offered" not in data:
        raise ConfigError(f"{path}: not a result of `vllm-goodput bench run`")
    return data


def _warnings(
    records: Sequence[Record],
    summary: Mapping[str, Any],
    interrupted: bool,
    streamed: bool,
    exact_lengths: bool,
) -> list[str]:
    found = []
    if interrupted:
        found.append(f"interrupted after {summary['offered']} requests; open ones count as failed")
    late_ms = summary["p99_client_late_ms"]
    if late_ms is not None and late_ms > LATENESS_LIMIT_S * 1e3:
        found.append(
            f"the client sent requests late (p99 {late_ms:.0f} ms): it was overloaded, so the run is doubtful"
        )
    if records and not any(record.slo for record in records):
        found.append("no request has an SLO, so every completed one counts as met; see --goodput")
    if not streamed and any(record.slo.tpot_ms is not None for record in records):
        found.append("TPOT is not measured without streaming, so TPOT SLOs count as met")
    if exact_lengths and summary["short_answers"]:
        found.append(f"{summary['short_answers']} answers are shorter than asked for")
    return found
