# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The KV cache of one engine as counts of blocks, with vLLM's prefix cache (vllm/v1/core/block_pool.py).

A block is private to one sequence until it is full, then it is published under a key that stands for its content and
everything before it. Published blocks that nobody uses stay until their memory is needed, least recently used first
and, of one sequence, its last block first. Blocks without content that could be found are taken before those; vLLM
keeps them in the same queue, which differs by one partly filled block per finished sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class KVCache:
    """Blocks of one engine.

    Args:
        blocks: how many there are.
        prefix_caching: whether full blocks are kept for later prompts.
    """

    def __init__(self, blocks: int, prefix_caching: bool = True) -> None:
        self.blocks = blocks
        self._caching = prefix_caching
        self._blank = blocks  # free blocks without findable content
        self._idle: OrderedDict[int, None] = OrderedDict()  # published, unused; oldest first
        self._users: dict[int, int] = {}  # published, used: by how many sequences

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self._blank + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks held by sequences; a shared one counts once."""
        return self.blocks - self.free

    def hits(self, keys: Iterable[int]) -> int:
        """How many blocks from the beginning of a prompt are there."""
        count = 0
        if self._caching:
            for key in keys:
                if key not in self._users and key not in self._idle:
                    break
                count += 1
        return count

    def idle(self, keys: Iterable[int]) -> int:
        """How many of these present blocks are unused, so that using them leaves fewer free."""
        return sum(1 for key in keys if key in self._idle)

    def share(self, keys: Iterable[int]) -> None:
        """Use blocks that are there."""
        for key in keys:
            if key in self._idle:
                del self._idle[key]
                self._users[key] = 1
            else:
                self._users[key] += 1

    def take(self, count: int) -> None:
        """Take private blocks; there must be enough free ones."""
        blank = min(count, self._blank)
        self._blank -= blank
        for _ in range(count - blank):
            self._idle.popitem(last=False)

    def publish(self, keys: Iterable[int]) -> int:
        """Private blocks have become full, in this order.

        Returns:
            How many are published: those before the first whose content is there already, which stays private.
        """
        users, idle = self._users, self._idle
        count = 0
        if self._caching:
            for key in keys:
                if key in users or key in idle:
                    break
                users[key] = 1
                count += 1
        return count

    def release(self, shared: Sequence[int], full: Sequence[int], private: int) -> None:
        """A sequence leaves.

        Args:
            shared: keys of its published blocks, first to last.
            full: keys of the private blocks after those that are full and may be found later.
            private: private blocks in all, these included.
        """
        kept = 0
        if self._caching:
            for key in reversed(full):
                if key not in self._users and key not in self._idle:
                    self._idle[key] = None
                    kept += 1
        self._blank += private - kept
        for key in reversed(shared):
            users = self._users[key] - 1
            if users:
                self._users[key] = users
            else:
                del self._users[key]
                self._idle[key] = None
