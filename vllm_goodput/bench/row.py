# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One request of a trace, and what a list of them says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vllm_goodput.slo import SLO

PREFIX_BLOCK_LEN = 512
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """One request of a trace.

    Args:
        arrival_s: when it arrives, seconds from the start of the trace.
        task: task type, or None.
        session: agent session; its turns share their prompt's beginning.
        prompt: text or token ids that are sent as they are; None to make `prompt_len` tokens up.
        messages: a conversation of (role, content) pairs, sent instead; for the chat endpoint only.
        prompt_len: prompt tokens; an estimate (4 characters a token) where only text is known.
        output_len: tokens to generate.
        media: always None; rows with media are refused.
        slo: objectives.
        prefix_ids: Mooncake's hash ids, one per block of 512 prompt tokens; equal ids are equal blocks.
    """

    arrival_s: float
    task: str | None = None
    session: str | None = None
    prompt: str | list[int] | None = None
    messages: tuple[tuple[str, str], ...] | None = None
    prompt_len: int
    output_len: int
    media: None = None
    slo: SLO = SLO()  # noqa: RUF009  (frozen)
    prefix_ids: tuple[int, ...] | None = None


def rebased(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """Rows sorted by arrival (ties keep their order) with the first at 0 s."""
    ordered = sorted(rows, key=lambda row: row.arrival_s)
    if not ordered or ordered[0].arrival_s == 0:
        return ordered
    first_s = ordered[0].arrival_s
    return [replace(row, arrival_s=row.arrival_s - first_s) for row in ordered]


def trace_duration_s(rows: Sequence[TraceRow]) -> float:
    """Seconds from the first arrival to the last."""
    return rows[-1].arrival_s - rows[0].arrival_s if rows else 0.0
