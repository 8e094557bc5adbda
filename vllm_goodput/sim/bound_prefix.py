# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Prompt tokens of a trace that no earlier request of it has: whatever a prefix cache does, they are computed once.

Which prompts begin alike is as in vllm_goodput/sim/prompts.py, to the token instead of the block: made-up prompts of a
session, Mooncake's hash ids, given token ids, and text at 4 characters a token. The cache is empty before the trace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_goodput.bench.row import CHARS_PER_TOKEN, PREFIX_BLOCK_LEN, TraceRow


@dataclass(frozen=True)
class Fresh:
    """New tokens of one prompt.

    Args:
        tokens: those that no earlier request has.
        charged: of these, the ones whose prefill costs time whoever computes them: the last token of a prompt may
            be all that a step prefills of it, and such a step counts as a decode (emulation.step_work).
    """

    tokens: int
    charged: int


def fresh_tokens(rows: Sequence[TraceRow]) -> list[Fresh]:
    """One Fresh per row, in the rows' order; equal arrivals are ordered as the rows are."""
    known = _Known()
    shared, parent, ends = [0] * len(rows), [-1] * len(rows), [1] * len(rows)
    for index in sorted(range(len(rows)), key=lambda i: rows[i].arrival_s):
        prompt_len = max(1, rows[index].prompt_len)
        shared[index], parent[index] = known.longest(index, rows[index])
        if shared[index] >= prompt_len:
            ends[index] = 0
            owner = parent[index]
            while shared[owner] >= prompt_len:
                owner = parent[owner]
            ends[owner] += 1  # this prompt's last token is one of the owner's new ones
    fresh = [row.prompt_len - shared[i] for i, row in enumerate(rows)]
    return [Fresh(n, max(0, n - ends[i])) for i, n in enumerate(fresh)]


@dataclass
class _Known:
    """The prompts so far."""

    sessions: dict[str, tuple[int, int]] = field(default_factory=dict)  # longest prompt and whose
    contents: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)  # sorted

    def longest(self, index: int, row: TraceRow) -> tuple[int, int]:
        """Add a prompt; returns how many of its tokens an earlier one begins with, and which one (or -1)."""
        kind, content, tokens = _content(row)
        if content is not None:
            common, other = self._nearest(kind, content, index)
            return min(row.prompt_len, int(common * tokens)), other
        if row.session is None:
            return 0, -1
        best = self.sessions.get(row.session, (0, -1))
        self.sessions[row.session] = max(best, (row.prompt_len, index), key=lambda b: b[0])
        return min(best[0], row.prompt_len), best[1]

    def _nearest(self, kind: str, content: Any, index: int) -> tuple[int, int]:
        """In a sorted list, what shares most is next to it."""
        known = self.contents.setdefault(kind, [])
        at = bisect_left(known, (content, index))
        around = known[max(0, at - 1) : at + 1]
        known.insert(at, (content, index))
        pairs = ((_common(content, other), i) for other, i in around)
        return max(pairs, key=lambda p: p[0], default=(0, -1))


def _content(row: TraceRow) -> tuple[str, Any, float]:
    """What is known of a prompt: its kind, its elements (None: nothing), tokens per element."""
    if isinstance(row.prompt, list):
        return "tokens", row.prompt, 1
    text = row.prompt
    if row.messages is not None:
        text = "\0".join(f"{role}\0{content}" for role, content in row.messages)
    if text is not None:
        return "text", text.encode("utf-8", "replace"), 1 / CHARS_PER_TOKEN
    return "ids", row.prefix_ids, PREFIX_BLOCK_LEN


def _common(a: Any, b: Any) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
