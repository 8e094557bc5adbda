# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Which KV blocks of which prompts are the same, from a trace's rows; equal keys stand for equal content so far.

Made-up prompts are taken to be those of `bench run`: a session's begin alike, Mooncake's hash ids say what is alike,
and everything else differs. Given token ids and text are compared, text at 4 characters a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_goodput._C import text_block_hashes, token_block_hashes
from vllm_goodput.bench.row import CHARS_PER_TOKEN, PREFIX_BLOCK_LEN, TraceRow
from vllm_goodput.router.prefix import MAX_BLOCKS, TOKENS_PER_KEY, Blocks

# Blocks of one prompt and its output are numbered from a multiple of this.
SPAN = 2**24
# Apart from those numbers.
HASHED = 2**80
# Spreads keys over 64 bits, as hashes are (Fibonacci hashing).
SPREAD = np.uint64(0x9E3779B97F4A7C15)


class PromptKeys:
    """Keys of the prompts of one trace.

    Args:
        rows: the trace.
        share_session: whether made-up prompts of one session begin alike.
    """

    def __init__(self, rows: Sequence[TraceRow], share_session: bool = True) -> None:
        self._rows = rows
        self._share_session = share_session
        self._sessions: dict[str, int] = {}

    def own(self, index: int) -> int:
        """The first key of what only this row has."""
        return (2 * index + 1) * SPAN

    def blocks(self, index: int) -> Blocks | None:
        """The same as the gateway would have it of a made-up prompt; None for one that is given."""
        row = self._rows[index]
        if row.prompt is not None or row.messages is not None:
            return None
        keys = self.of(index, TOKENS_PER_KEY)[:MAX_BLOCKS]
        if isinstance(keys, range):
            plain = np.arange(keys.start, keys.stop, dtype=np.uint64)
        else:
            plain = np.array([key % 2**64 for key in keys], dtype=np.uint64)
        return Blocks(plain * SPREAD, float(TOKENS_PER_KEY))

    def of(self, index: int, block_size: int) -> Sequence[int]:
        """Keys of the full blocks of a row's prompt."""
        row = self._rows[index]
        count = row.prompt_len // block_size
        own = range(self.own(index), self.own(index) + count)
        if row.prompt is not None or row.messages is not None:
            keys = _given(row, block_size)[:count]
        elif row.prefix_ids is not None:
            keys = _chained(row.prefix_ids, block_size)[:count]
        elif row.session and self._share_session:
            number = self._sessions.setdefault(row.session, len(self._sessions))
            return range(2 * number * SPAN, 2 * number * SPAN + count)
        else:
            return own
        return [*keys, *own[len(keys) :]]


def _given(row: TraceRow, block_size: int) -> list[int]:
    if isinstance(row.prompt, list):
        hashes = token_block_hashes(row.prompt, block_size)
    else:
        text = row.prompt
        if text is None:
            text = "\0".join(f"{role}\0{content}" for role, content in row.messages or ())
        data = text.encode("utf-8", "replace")
        hashes = text_block_hashes(data, block_size * CHARS_PER_TOKEN)
    return [HASHED + key for key in hashes.tolist()]


def _chained(ids: Sequence[int], block_size: int) -> list[int]:
    """Keys of the blocks that lie within the prompt's beginning that the ids describe."""
    per_id, rest = divmod(PREFIX_BLOCK_LEN, block_size)
    keys: list[int] = []
    key = 0
    if rest == 0:
        for one in ids:
            key = hash((key, one))
            first = HASHED + key * PREFIX_BLOCK_LEN
            keys += range(first, first + per_id)
        return keys
    for start in range(0, len(ids) * PREFIX_BLOCK_LEN - block_size + 1, block_size):
        begin, end = start // PREFIX_BLOCK_LEN, (start + block_size - 1) // PREFIX_BLOCK_LEN
        key = hash((key, start % PREFIX_BLOCK_LEN, *ids[begin : end + 1]))
        keys.append(HASHED + key)
    return keys
