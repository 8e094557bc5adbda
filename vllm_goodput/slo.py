# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Service-level objectives: the type, its spellings, and how one request states its own.

Per request and per metric, the first source that sets it wins: headers, then `vllm_xargs` of the body, then the
server's default. A value that is zero, negative, non-finite, too large or not a number is an error naming the field;
it never turns into a tighter deadline. Limits: values are milliseconds in (0, 1e9], about 11 days.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from vllm_goodput.errors import BadRequestError, ConfigError, RejectedError

METRICS = ("ttft", "tpot", "e2el")
MAX_SLO_MS = 1e9
MAX_LABEL_LEN = 128

DEADLINE_HEADER = "x-request-deadline"
TASK_HEADER = "x-goodput-task"
SESSION_HEADER = "x-session-id"
# Canonical header first; llm-d's names are accepted as aliases.
SLO_HEADERS: dict[str, tuple[str, ...]] = {
    "ttft": ("x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"),
    "tpot": ("x-slo-tpot-ms", "x-llm-d-slo-tpot-ms"),
    "e2el": ("x-slo-e2el-ms",),
}
INTERNAL_PREFIX = "goodput_"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[+]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class SLO:
    """Objectives of one request, in milliseconds; None means not asked for.

    Args:
        ttft_ms: time to first token.
        tpot_ms: mean time per output token after the first.
        e2el_ms: end-to-end latency.

    Raises:
        ConfigError: a value is not a finite number in (0, 1e9].
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def __post_init__(self) -> None:
        for metric in METRICS:
            value = getattr(self, f"{metric}_ms")
            if value is not None and not _valid_ms(value):
                raise ConfigError(f"SLO {metric}_ms must be {_REQUIREMENT}, got {value!r}")

    @property
    def ttft_s(self) -> float:
        """Bound on TTFT, seconds; inf when none."""
        return math.inf if self.ttft_ms is None else self.ttft_ms / 1e3

    @property
    def tpot_s(self) -> float:
        """Bound on TPOT, seconds; inf when none."""
        return math.inf if self.tpot_ms is None else self.tpot_ms / 1e3

    @property
    def e2el_s(self) -> float:
        """Bound on end-to-end latency, seconds; inf when none."""
        return math.inf if self.e2el_ms is None else self.e2el_ms / 1e3

    def __bool__(self) -> bool:
        return any(getattr(self, f"{m}_ms") is not None for m in METRICS)

    def over(self, default: SLO) -> SLO:
        """This SLO with the metrics it leaves open taken from `default`."""
        missing = {
            f"{m}_ms": getattr(default, f"{m}_ms")
            for m in METRICS
            if getattr(self, f"{m}_ms") is None
        }
        return replace(self, **missing)

    def as_dict(self) -> dict[str, float]:
        """The metrics that are set, e.g. {"e2el_ms": 20000.0}."""
        return {
            f"{m}_ms": value for m in METRICS if (value := getattr(self, f"{m}_ms")) is not None
        }

    def met_by(self, ttft_s: float, tpot_s: float, e2el_s: float) -> bool:
        """Whether measured latencies meet every objective."""
        return not self.missed_by(ttft_s, tpot_s, e2el_s)

    def missed_by(self, ttft_s: float, tpot_s: float, e2el_s: float) -> list[str]:
        """The metrics whose objectives these latencies (seconds) miss."""
        measured = zip(METRICS, (ttft_s, tpot_s, e2el_s), strict=True)
        return [metric for metric, value in measured if value > getattr(self, f"{metric}_s")]


@dataclass(frozen=True)
class RequestSLO:
    """What one request says of itself: its SLO (defaults merged in), task type and agent session."""

    slo: SLO
    task: str | None = None
    session: str | None = None


def parse_slo_args(pairs: Iterable[str], name: str = "--goodput-slo") -> SLO:
    """Parse vLLM's own syntax, e.g. `ttft:200 tpot:50 e2el:20000` (milliseconds).

    Raises:
        ConfigError: a pair is malformed, unknown or repeated.
    """
    values: dict[str, float] = {}
    for pair in pairs:
        metric, colon, text = pair.partition(":")
        if not colon or metric not in METRICS:
            raise ConfigError(
                f"{name}: expected METRIC:MILLISECONDS with METRIC one of {', '.join(METRICS)}, got {pair!r}"
            )
        if f"{metric}_ms" in values:
            raise ConfigError(f"{name}: {metric} is given twice")
        value = _number(text)
        if value is None or not _valid_ms(value):
            raise ConfigError(f"{name}: {metric} must be {_REQUIREMENT}, got {text!r}")
        values[f"{metric}_ms"] = value
    return SLO(**values)


def request_slo(
    headers: Iterable[tuple[str, str]],
    body: Mapping[str, Any],
    default: SLO,
    wall_time_s: float,
) -> RequestSLO:
    """Read a request's SLO, task and session from headers and raw JSON body.

    Args:
        headers: (name, value) pairs as received; names in any case.
        body: the decoded JSON body *before* any model coerced it (JSON true is not a number).
        default: the server's SLO.
        wall_time_s: Unix time now, for absolute deadlines.

    Raises:
        BadRequestError: a field is malformed.
        RejectedError: the deadline has passed (`expired`).
    """
    fields = _relevant_headers(headers)
    xargs = body.get("vllm_xargs") or {}
    if not isinstance(xargs, Mapping):
        raise BadRequestError("vllm_xargs", "an object", xargs)
    values = {f"{m}_ms": _metric(m, fields, xargs) for m in METRICS}
    if DEADLINE_HEADER in fields:
        left_ms = _deadline_ms(fields[DEADLINE_HEADER], wall_time_s)
        values["e2el_ms"] = min(left_ms, values["e2el_ms"] or math.inf)
    task = _label(TASK_HEADER, fields.get(TASK_HEADER)) or _label(
        "vllm_xargs.task", xargs.get("task")
    )
    session = _label(SESSION_HEADER, fields.get(SESSION_HEADER))
    return RequestSLO(SLO(**values).over(default), task, session)


def internal_fields(body: Mapping[str, Any]) -> list[str]:
    """Names in `vllm_xargs` that only the pool itself may set."""
    xargs = body.get("vllm_xargs")
    if not isinstance(xargs, Mapping):
        return []
    return [name for name in xargs if isinstance(name, str) and name.startswith(INTERNAL_PREFIX)]


_REQUIREMENT = f"a number of milliseconds greater than 0 and at most {MAX_SLO_MS:.0f}"
_KNOWN_HEADERS = frozenset(
    [DEADLINE_HEADER, TASK_HEADER, SESSION_HEADER, *(h for hs in SLO_HEADERS.values() for h in hs)]
)


def _relevant_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        if key not in _KNOWN_HEADERS:
            continue
        if key in found and found[key] != value:
            raise BadRequestError(key, "given once", [found[key], value])
        found[key] = value
    return found


def _metric(metric: str, fields: Mapping[str, str], xargs: Mapping[str, Any]) -> float | None:
    value: float | None = None
    for header in SLO_HEADERS[metric]:
        if header in fields:
            parsed = _checked_ms(header, fields[header])
            value = parsed if value is None else value
    key = f"slo_{metric}_ms"
    if xargs.get(key) is not None:
        parsed = _checked_ms(f"vllm_xargs.{key}", xargs[key])
        value = parsed if value is None else value
    return value


def _checked_ms(param: str, raw: object) -> float:
    value = _number(raw)
    if value is None or not _valid_ms(value):
        raise BadRequestError(param, _REQUIREMENT, raw)
    return value


def _number(raw: object) -> float | None:
    """A JSON number or its plain decimal spelling; None for anything else (true, "nan", "1_0", " 5")."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        return float(raw) if _NUMBER.fullmatch(raw) else None
    if isinstance(raw, int | float):
        try:
            return float(raw)
        except OverflowError:
            return math.inf
    return None


def _valid_ms(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= MAX_SLO_MS  # also false for nan and inf


def _deadline_ms(text: str, wall_time_s: float) -> float:
    """Milliseconds left until an RFC 3339 or Unix-seconds deadline."""
    at_s = _number(text)
    if at_s is None:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise BadRequestError(
                DEADLINE_HEADER, "an RFC 3339 time with zone or Unix seconds", text
            ) from None
        if at.tzinfo is None:
            raise BadRequestError(DEADLINE_HEADER, "a time with its zone (Z or +hh:mm)", text)
        at_s = (at - _EPOCH).total_seconds()  # no astimezone(): it overflows near year 1 and 9999
    left_ms = (at_s - wall_time_s) * 1e3
    if left_ms > MAX_SLO_MS:
        raise BadRequestError(
            DEADLINE_HEADER, f"within {MAX_SLO_MS:.0f} ms from now (Unix time is in seconds)", text
        )
    if left_ms <= 0:
        raise RejectedError("expired", f"{DEADLINE_HEADER} passed {-left_ms:.0f} ms ago")
    return left_ms


def _label(param: str, raw: object) -> str | None:
    if raw is None or raw == "":
        return None
    if not isinstance(raw, str) or len(raw) > MAX_LABEL_LEN or not raw.isprintable():
        raise BadRequestError(
            param, f"a printable string of at most {MAX_LABEL_LEN} characters", raw
        )
    return raw
