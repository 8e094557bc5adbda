# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What an instance's KV events say, in the keys of router/prefix.py.

vLLM (vllm/distributed/kv_events.py) names a block by its own hash and tells, when it is stored, the block before it and
its token IDs. From these follow the keys that a prompt of the same token IDs has; a block of 32 tokens has two. vLLM
may hold a block in several copies and tells of each; it is gone when the last one is.

Limits: only the GPU's copy counts, not offloaded ones, and of a hybrid model's groups of layers only the first one with
full attention. Blocks with images or embeddings in them, and blocks whose size is no multiple of 16 tokens, have no
token keys. A chain told again from its beginning, of more than one block and all known, is taken for a report of reuse
(vLLM's kv_cache_report_mode=full), not for further copies. At most MAX_BLOCKS blocks an instance, about 250 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_goodput._C import token_keys
from vllm_goodput.router.prefix import TOKENS_PER_KEY, seed

MAX_BLOCKS = 2**20
# vLLM's kinds of KV cache in which every token's block is kept; None where it does not tell.
FULL_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention")

Hash = int | bytes


class KvEventSink(Protocol):
    """Told what an instance's prefix cache holds, in token keys. Must not raise."""

    def stored(self, instance: str, hashes: NDArray[np.uint64], parent: int | None) -> None:
        """These blocks are held, behind the block `parent` (None: from a prompt's beginning)."""

    def removed(self, instance: str, hashes: NDArray[np.uint64]) -> None:
        """These blocks are gone."""

    def lost(self, instance: str) -> None:
        """Events were missed, or a watch begins: nothing is known of the token keys that it holds."""

    def cleared(self, instance: str) -> None:
        """The instance has emptied its cache, whatever the kind of keys, or is a new engine."""


@dataclass
class KvEventCounters:
    """What came from one instance since the watch was started.

    Args:
        batches: messages applied.
        stored, removed: blocks, copies included.
        cleared: AllBlocksCleared events.
        unkeyed: stored blocks without token keys, or whose beginning is not known.
        gaps: runs of missed messages, and those of them that were made good by a replay.
        repaired: see gaps.
        restarts: new connections and engines after the first.
        malformed: messages that could not be read.
    """

    batches: int = 0
    stored: int = 0
    removed: int = 0
    cleared: int = 0
    unkeyed: int = 0
    gaps: int = 0
    repaired: int = 0
    restarts: int = 0
    malformed: int = 0


@dataclass(slots=True)
class _Block:
    keys: list[int]
    copies: int = 1


class MalformedEventError(Exception):
    """An event is not of the form that vLLM gives it."""


class KvBlocks:
    """The blocks of one instance.

    Args:
        instance: its name, for the sink.
        model: name of the base model in keys.
        sink: told of changes.
        counters: counts them.
    """

    def __init__(
        self, instance: str, model: str | None, sink: KvEventSink, counters: KvEventCounters
    ) -> None:
        self._instance = instance
        self._model = model
        self._sink = sink
        self._counters = counters
        self._blocks: dict[Hash, _Block] = {}
        # Blocks that have a key which is not their last: larger blocks that differ may begin alike.
        self._inner: dict[int, int] = {}
        self._group: int | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, events: Any) -> None:
        """Apply the events of one message in order.

        Raises:
            MalformedEventError: they are not what vLLM sends; those before the wrong one were applied.
        """
        try:
            for event in events:
                kind = event["type"]
                if kind == "BlockStored":
                    self._stored(event)
                elif kind == "BlockRemoved":
                    self._removed(event)
                elif kind == "AllBlocksCleared":
                    self._counters.cleared += 1
                    self.clear()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedEventError(f"{type(error).__name__}: {error}") from error

    def clear(self) -> None:
        """The engine holds nothing, or is another one."""
        self._empty()
        self._sink.cleared(self._instance)

    def lose(self) -> None:
        """Events were missed, or none have come yet."""
        self._empty()
        self._sink.lost(self._instance)

    def _empty(self) -> None:
        self._blocks.clear()
        self._inner.clear()

    def _stored(self, event: Mapping[str, Any]) -> None:
        if event.get("kv_cache_spec_kind") in FULL_ATTENTION and self._group is None:
            self._group = event.get("group_idx")
        if not self._concerns(event) or event.get("kv_cache_spec_kind") not in FULL_ATTENTION:
            return
        hashes, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        self._counters.stored += len(hashes)
        usable = _without_other_keys(event.get("extra_keys"), len(hashes))
        if size % TOKENS_PER_KEY or len(tokens) != len(hashes) * size:
            usable = 0
        before = event["parent_block_hash"]
        parent = self._blocks.get(before)
        if (before is not None and parent is None) or len(self._blocks) + usable > MAX_BLOCKS:
            usable = 0
        self._counters.unkeyed += len(hashes) - usable
        if not usable:
            return
        state = self._seed(event) if parent is None else parent.keys[-1]
        each = size // TOKENS_PER_KEY
        keys = token_keys(tokens[: usable * size], TOKENS_PER_KEY, state, usable * each)
        if keys is None:
            raise ValueError("token_ids are no list of token IDs")
        self._hold(hashes[:usable], keys.tolist(), each, first=before is None)
        self._sink.stored(self._instance, keys, None if parent is None else state)

    def _seed(self, event: Mapping[str, Any]) -> int:
        lora = event.get("lora_name")
        salt = _salt(event.get("extra_keys"), lora)
        return seed("tokens", self._model if lora is None else lora, salt)

    def _hold(self, hashes: Sequence[Hash], keys: list[int], each: int, first: bool) -> None:
        blocks = self._blocks
        known = [blocks.get(name) for name in hashes]
        if first and len(hashes) > 1 and all(known):
            return
        for i, (name, block) in enumerate(zip(hashes, known, strict=True)):
            if block is None:
                mine = keys[i * each : (i + 1) * each]
                blocks[name] = _Block(mine)
                for key in mine[:-1]:
                    self._inner[key] = self._inner.get(key, 0) + 1
            else:
                block.copies += 1

    def _removed(self, event: Mapping[str, Any]) -> None:
        if not self._concerns(event):
            return
        gone: list[int] = []
        for name in event["block_hashes"]:
            self._counters.removed += 1
            block = self._blocks.get(name)
            if block is None:
                continue
            block.copies -= 1
            if block.copies == 0:
                del self._blocks[name]
                gone += self._release(block)
        if gone:
            self._sink.removed(self._instance, np.array(gone, dtype=np.uint64))

    def _release(self, block: _Block) -> Iterator[int]:
        """The keys that no other block has."""
        *inner, last = block.keys
        for key in inner:
            self._inner[key] -= 1
            if self._inner[key] == 0:
                del self._inner[key]
                yield key
        yield last

    def _concerns(self, event: Mapping[str, Any]) -> bool:
        return (
            event.get("medium") in (None, "GPU")
            and event.get("locality") in (None, "LOCAL")
            and event.get("group_idx") == self._group
        )


def _salt(extra_keys: Any, lora: str | None) -> str | None:
    """The cache salt: among the first block's keys the string that is not the adapter's name."""
    first = extra_keys[0] if extra_keys else None
    names = [key for key in first or () if isinstance(key, str)]
    if lora is not None and names and names[0] == lora:
        names = names[1:]
    return names[0] if names else None


def _without_other_keys(extra_keys: Any, blocks: int) -> int:
    """How many of the blocks, from the first, hold tokens only; images and embeddings have keys that are no strings."""
    for i, keys in enumerate(extra_keys or ()):
        if any(not isinstance(key, str) for key in keys or ()):
            return min(i, blocks)
    return blocks
