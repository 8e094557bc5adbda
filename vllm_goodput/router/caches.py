# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What each instance's prefix cache is believed to hold: H in the latency model.

Two indices, as token keys and text keys would push each other out of one. Both learn from what is dispatched; where an
instance publishes KV events, its token keys come from these alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vllm_goodput import _C
from vllm_goodput.router.prefix import BYTES_PER_KEY, DEFAULT_BLOCK_SIZE, TOKENS_PER_KEY, Blocks

# Prefix cache assumed where an instance does not tell its size, tokens.
DEFAULT_KV_TOKENS = 100_000
BYTES_PER_TOKEN = 4


class PrefixCaches:
    """Prefix caches of a pool, by slot."""

    def __init__(self) -> None:
        self._tokens = _C.PrefixIndex()
        self._text = _C.PrefixIndex()
        self._block_size = np.zeros(0, np.int32)
        self._published: set[int] = set()

    def add_instance(
        self, slot: int, kv_tokens: int | None, block_size: int | None, published: bool
    ) -> None:
        """Add an instance, or update what is known of it.

        Args:
            slot: of the instance.
            kv_tokens: size of its KV cache; a default where unknown.
            block_size: tokens per block of it.
            published: whether KV events tell what it holds.
        """
        kv_tokens = kv_tokens or DEFAULT_KV_TOKENS
        self._tokens.add_instance(slot, max(1, kv_tokens // TOKENS_PER_KEY))
        self._text.add_instance(slot, max(1, kv_tokens * BYTES_PER_TOKEN // BYTES_PER_KEY))
        if slot >= len(self._block_size):
            grown = np.full(slot + 1, DEFAULT_BLOCK_SIZE, np.int32)
            grown[: len(self._block_size)] = self._block_size
            self._block_size = grown
        self._block_size[slot] = block_size or DEFAULT_BLOCK_SIZE
        if published:
            self._published.add(slot)
        else:
            self._published.discard(slot)

    def remove_instance(self, slot: int) -> None:
        """Forget an instance."""
        self._tokens.remove_instance(slot)
        self._text.remove_instance(slot)
        self._published.discard(slot)

    def clear(self, slot: int, text: bool = True) -> None:
        """The instance has dropped everything; not `text`: only its token keys are in doubt."""
        self._tokens.clear_instance(slot)
        if text:
            self._text.clear_instance(slot)

    def hits(self, blocks: Blocks | None, prompt_len: int) -> npt.NDArray[np.float64] | None:
        """Prompt tokens that each slot's cache holds; None where the prompt is not known."""
        if blocks is None or not len(blocks.hashes):
            return None
        index = self._tokens if blocks.exact else self._text
        return blocks.hit_tokens(index.match(blocks.hashes), prompt_len, self._block_size)

    def insert(self, slot: int, blocks: Blocks | None) -> None:
        """A prompt was sent to an instance."""
        if blocks is None or not len(blocks.hashes):
            return
        if not blocks.exact:
            self._text.insert(slot, blocks.hashes)
        elif slot not in self._published:
            self._tokens.insert(slot, blocks.hashes)

    def stored(self, slot: int, parent: int | None, hashes: npt.NDArray[np.uint64]) -> None:
        """A KV event: token blocks are in the cache, behind the block `parent` (None: at the beginning)."""
        if parent is None:
            self._tokens.insert(slot, hashes)
        else:
            self._tokens.extend(slot, parent, hashes)

    def removed(self, slot: int, hashes: npt.NDArray[np.uint64]) -> None:
        """A KV event: token blocks are gone."""
        self._tokens.evict(slot, hashes)
