# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One request inside a simulated engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_goodput.sim.kv import KVCache

NEVER = -1


@dataclass(eq=False, slots=True)
class Seq:
    """A request in an engine's queue or batch. Token counts are of what has been scheduled.

    Args:
        prompt_len: prompt tokens.
        output_len: tokens that it generates before it ends.
        keys: of its full prompt blocks, first to last.
        own_key: the key of a later block is this plus the block's index.
        done: output tokens that it has when it enters, which it computes again as if they were prompt.
        computed: of these, tokens computed since it was admitted.
        end_step: the engine's step that makes its last token, once its prefill is scheduled.
        started: whether its first token is out.
        gone: whether it has left the engine.
        preemptions: how often it lost its KV blocks.
        cached: tokens that were in the prefix cache when it was admitted.
        held: KV blocks, shared ones included; in the decode phase those of `length` tokens.
        shared: keys of the published ones.
    """

    prompt_len: int
    output_len: int
    keys: Sequence[int] = ()
    own_key: int = 0
    done: int = 0
    computed: int = 0
    end_step: int = NEVER
    started: bool = False
    gone: bool = False
    preemptions: int = 0
    cached: int = 0
    held: int = 0
    shared: list[int] = field(default_factory=list)

    @property
    def need(self) -> int:
        """Tokens to compute before it makes a new one."""
        return self.prompt_len + self.done

    @property
    def decoding(self) -> bool:
        """Whether its prefill is scheduled to the end."""
        return self.end_step != NEVER

    def outputs(self, steps: int) -> int:
        """Output tokens once the engine's first `steps` steps are through."""
        if self.end_step == NEVER:
            return self.done
        left = self.end_step - steps
        made = self.output_len - left if left > 0 else self.output_len
        return made if made > self.done else self.done

    def length(self, steps: int) -> int:
        """Tokens whose keys and values are computed by then; the newest token's are not."""
        return self.prompt_len + self.outputs(steps) - 1 if self.decoding else self.computed

    def full_keys(self, first: int, last: int) -> list[int]:
        """Keys of the full blocks in [first, last)."""
        own = range(max(first, len(self.keys)), last)
        return [*self.keys[first:last], *[self.own_key + block for block in own]]

    def publish(self, cache: KVCache, block_size: int) -> None:
        """Make the blocks filled so far findable, unless somebody computes the same at this moment."""
        keys = self.full_keys(len(self.shared), self.computed // block_size)
        self.shared += keys[: cache.publish(keys)]

    def release(self, cache: KVCache, block_size: int, steps: int, ended: int) -> None:
        """Give all blocks back; what is full can be found until its memory is needed.

        Args:
            cache: the engine's.
            block_size: tokens per block.
            steps: the engine's steps that blocks were taken for.
            ended: of these, the steps whose tokens are known.
        """
        held = -(-self.length(steps) // block_size) if self.decoding else self.held
        first = len(self.shared)
        full = self.full_keys(first, self.length(ended) // block_size)
        cache.release(self.shared, full, held - first)
        self.shared = []
        self.held = 0
