# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What is known of one replayed request when it has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_goodput.slo import SLO


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request's outcome. Times are seconds; a request is completed, rejected or failed.

    Args:
        index: place in the replayed trace.
        arrival_s: planned sending time from the start of the run.
        prompt_len: prompt tokens (as the server counted them, where it says).
        output_len: output tokens asked for.
        slo: objectives.
        late_s: actual minus planned sending time.
        finished_s: when the answer ended, from the start of the run.
        status: HTTP status; None when there was no answer.
        completed: the whole answer arrived.
        reject_reason: the server's `x-goodput-reject-reason`.
        error: why it failed or was rejected.
        ttft_s: time to first token.
        tpot_s: mean time per output token after the first; None when there is at most one or nothing was streamed.
        e2el_s: end-to-end latency.
        itl_s: gaps between tokens.
        output_tokens: tokens received.
        instance: the `x-goodput-instance` that answered.
        predicted_e2el_ms: the router's prediction, milliseconds.
        migrations: how often it moved between instances.
    """

    index: int
    arrival_s: float
    prompt_len: int
    output_len: int
    slo: SLO = SLO()  # noqa: RUF009  (frozen)
    task: str | None = None
    session: str | None = None
    request_id: str | None = None
    late_s: float = 0.0
    finished_s: float | None = None
    status: int | None = None
    completed: bool = False
    reject_reason: str | None = None
    error: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    itl_s: Sequence[float] = ()
    output_tokens: int = 0
    instance: str | None = None
    predicted_e2el_ms: float | None = None
    migrations: int = 0

    @property
    def missed(self) -> tuple[str, ...]:
        """The metrics whose objective a completed request missed."""
        if not self.completed:
            return ()
        e2el_s = math.inf if self.e2el_s is None else self.e2el_s
        ttft_s = e2el_s if self.ttft_s is None else self.ttft_s
        tpot_s = 0.0 if self.tpot_s is None else self.tpot_s  # as vLLM: one token has no TPOT
        return tuple(self.slo.missed_by(ttft_s, tpot_s, e2el_s))

    @property
    def outcome(self) -> str:
        """`met`, `missed`, `rejected` or `failed`."""
        if self.completed:
            return "missed" if self.missed else "met"
        return "rejected" if self.reject_reason is not None else "failed"

    def as_row(self) -> dict[str, Any]:
        """The fields that say something, for JSON; times in milliseconds except `arrival_s`."""
        row: dict[str, Any] = {
            "index": self.index,
            "arrival_s": round(self.arrival_s, 6),
            "outcome": self.outcome,
            "prompt_len": self.prompt_len,
            "output_len": self.output_len,
            "output_tokens": self.output_tokens,
            "late_ms": round(self.late_s * 1e3, 3),
        }
        for name in ("ttft", "tpot", "e2el"):
            value = getattr(self, f"{name}_s")
            row[f"{name}_ms"] = None if value is None else round(value * 1e3, 3)
        row["slo"] = self.slo.as_dict()
        for name in (
            "task",
            "session",
            "request_id",
            "status",
            "instance",
            "predicted_e2el_ms",
            "migrations",
            "reject_reason",
            "error",
        ):
            row[name] = getattr(self, name)
        return {
            name: value
            for name, value in row.items()
            if value not in (None, 0, {}) or name in _KEPT
        }


_KEPT = frozenset(["index", "arrival_s", "output_tokens"])
