# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The size of an instance's KV cache, as the plugin tells or from vLLM's metric `vllm:cache_config_info`.

Limit: the caches of an instance's data-parallel ranks count as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Larger numbers are no sizes, and longer texts no such numbers.
MAX_COUNT = 2**40
MAX_DIGITS = 13
MAX_BLOCK_SIZE = 2**20

_LINE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class KvSize:
    """Size of an instance's KV cache, as far as it is known.

    Args:
        kv_tokens: tokens that fit in.
        block_size: tokens per block.
    """

    kv_tokens: int | None = None
    block_size: int | None = None

    @property
    def complete(self) -> bool:
        """Whether both are known."""
        return self.kv_tokens is not None and self.block_size is not None

    def over(self, other: KvSize) -> KvSize:
        """This one, with what it leaves open taken from another."""
        return KvSize(
            other.kv_tokens if self.kv_tokens is None else self.kv_tokens,
            other.block_size if self.block_size is None else self.block_size,
        )


def size_of_info(info: Mapping[str, Any] | None) -> KvSize:
    """From the answer of the plugin's /goodput/v1/info."""
    return _size(info or {}, "kv_tokens", 1)


def size_of_metrics(page: str) -> KvSize:
    """From a vLLM's /metrics page; it has one line per data-parallel rank."""
    ranks = [dict(_LABEL.findall(labels)) for labels in _LINE.findall(page)]
    # The size in tokens is that of one rank, the number of blocks that of all of them.
    return _size(ranks[0], "kv_cache_size_tokens", len(ranks)) if ranks else KvSize()


def _size(told: Mapping[str, Any], tokens_field: str, ranks: int) -> KvSize:
    block_size = _count(told.get("block_size"), MAX_BLOCK_SIZE)
    kv_tokens = _count(told.get(tokens_field))
    if kv_tokens is not None:
        return KvSize(kv_tokens * ranks, block_size)
    blocks = _count(told.get("num_gpu_blocks"))
    if blocks is None or block_size is None:
        return KvSize(None, block_size)
    return KvSize(blocks * block_size, block_size)


def _count(value: Any, most: int = MAX_COUNT) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:
        value = int(value)
    valid = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most
    return value if valid else None
