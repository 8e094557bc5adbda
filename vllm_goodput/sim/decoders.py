# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The sequences of one engine that decode: all take part in every step, so counting replaces looking at each."""

from __future__ import annotations

import heapq

from vllm_goodput.sim.sequence import Seq


class Decoders:
    """Decoding sequences by when they end and by when they need another block.

    Args:
        block_size: tokens per KV block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        # By last step; those that have left stay in it until they come up.
        self._ends: list[tuple[int, int, Seq]] = []
        self._entries: dict[Seq, int] = {}  # the valid one of each, which may join several times
        self._joined = 0
        # (tokens - steps) modulo block size stays the same while a sequence decodes and tells when a block is full.
        self._phases = [0] * block_size

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._entries)

    def join(self, seq: Seq, steps: int) -> None:
        """A sequence decodes from step `steps + 1` on."""
        self._phases[self._phase(seq, steps)] += 1
        self._joined += 1
        self._entries[seq] = self._joined
        heapq.heappush(self._ends, (seq.end_step, self._joined, seq))

    def leave(self, seq: Seq, steps: int) -> None:
        """A sequence is taken out after step `steps`, before its end."""
        del self._entries[seq]
        self._phases[self._phase(seq, steps)] -= 1

    def next_end(self) -> int:
        """The first step that is some sequence's last; there must be one."""
        while self._stale(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0]

    def pop_ended(self, steps: int) -> list[Seq]:
        """Let those leave whose last step is `steps`, in the order in which they joined."""
        ended = []
        while self._ends and self._ends[0][0] <= steps:
            entry = heapq.heappop(self._ends)
            if not self._stale(entry):
                self.leave(entry[2], steps)
                ended.append(entry[2])
        return ended

    def blocks(self, steps: int, count: int) -> int:
        """Blocks that the `count` steps after step `steps` need if nobody joins or leaves."""
        rounds, rest = divmod(count, self._block_size)
        size, phases = self._block_size, self._phases
        return rounds * self.count + sum(phases[-(steps + i) % size] for i in range(rest))

    def _phase(self, seq: Seq, steps: int) -> int:
        return (seq.length(steps) - steps) % self._block_size

    def _stale(self, entry: tuple[int, int, Seq]) -> bool:
        return self._entries.get(entry[2]) != entry[1]
