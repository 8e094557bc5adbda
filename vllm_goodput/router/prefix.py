# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Keys of prompts for the prefix index: one 64-bit hash per full block, each covering everything before it.

Two kinds. Token keys, of blocks of 16 token IDs, say exactly what vLLM's prefix cache would say. Text keys, of blocks
of 64 UTF-8 bytes, are an approximation for prompts that only the engine tokenises: what is equal up to some byte is
equal up to about as many tokens. Kind, block size, model (a LoRA adapter is one), cache salt and whatever else changes
a prompt from its beginning are in the seed of the hash, so that unlike prompts have no key in common.

Limits: at most MAX_BLOCKS keys a prompt (131,072 tokens or 512 KiB of text); what is behind them counts as not cached.
Keys are equal by accident with probability 2^-64 a pair, and they are no secret: whoever can choose token IDs freely
can make prompts whose keys meet, which misleads routing about these prompts and does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from vllm_goodput._C import hit_tokens, text_keys, token_keys

TOKENS_PER_KEY = 16
BYTES_PER_KEY = 64
MAX_BLOCKS = 8192
MAX_TEXT_BYTES = MAX_BLOCKS * BYTES_PER_KEY
# Prefix cache blocks of an instance whose block size is not known, tokens (vLLM's default on GPUs).
DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The keys of a prompt.

    Args:
        hashes: uint64, shape [blocks].
        tokens_per_block: exact for token IDs, an estimate for text.
        exact: whether they are token keys; text keys otherwise. Keep the two kinds in indices of their own.
    """

    hashes: NDArray[np.uint64]
    tokens_per_block: float
    exact: bool = True

    def hit_tokens(
        self,
        matched: NDArray[np.int32],
        prompt_len: int,
        block_size: NDArray[np.int32] | int = DEFAULT_BLOCK_SIZE,
    ) -> NDArray[np.float64]:
        """Prompt tokens that need no prefill, from matched blocks; each way of rounding is down.

        vLLM reuses whole blocks of its own, and always computes the last token. For text both the bytes behind
        the last whole 64 and the tokens behind the last whole block are left out, so that the estimate is on
        average about a block too low where tokens per byte are right.

        Args:
            matched: blocks that each instance holds, shape [instances].
            prompt_len: tokens of the whole prompt, exact or estimated.
            block_size: tokens per block of each instance's prefix cache.
        """
        if isinstance(block_size, int):
            block_size = np.full(len(matched), block_size, np.int32)
        return hit_tokens(matched, block_size, self.tokens_per_block, prompt_len)


def token_blocks(token_ids: list[int], model: str | None, salt: str | None = None) -> Blocks | None:
    """Keys of a prompt given as token IDs.

    Args:
        token_ids: the prompt; the IDs behind MAX_BLOCKS blocks are not looked at.
        model: what the instance's cache tells apart: the base model or a LoRA adapter, by one name each.
        salt: vLLM's `cache_salt`.

    Returns:
        None if an item is no int of 32 bits.
    """
    hashes = token_keys(token_ids, TOKENS_PER_KEY, seed("tokens", model, salt), MAX_BLOCKS)
    return None if hashes is None else Blocks(hashes, float(TOKENS_PER_KEY))


def text_blocks(
    text: bytes,
    tokens_per_byte: float,
    model: str | None,
    salt: str | None = None,
    more: bytes = b"",
) -> Blocks:
    """Keys of a prompt given as text.

    Args:
        text: UTF-8; the bytes behind MAX_TEXT_BYTES are not looked at.
        tokens_per_byte: an estimate.
        model, salt: as for token_blocks.
        more: anything else that changes the prompt from its beginning.
    """
    hashes = text_keys(text, BYTES_PER_KEY, seed("text", model, salt, more), MAX_BLOCKS)
    return Blocks(hashes, BYTES_PER_KEY * tokens_per_byte, exact=False)


@lru_cache(maxsize=4096)
def seed(kind: str, model: str | None, salt: str | None, more: bytes = b"") -> int:
    """Where the hash of a prompt starts: different for whatever is different.

    Args:
        kind: tokens or text.
        model, salt, more: as for text_blocks.
    """
    digest = blake2b(digest_size=8, person=b"goodput-prefix")
    for part in _parts(kind, model, salt, more):
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return int.from_bytes(digest.digest(), "little")


def _parts(kind: str, model: str | None, salt: str | None, more: bytes) -> Iterator[bytes | None]:
    yield f"{kind}/{TOKENS_PER_KEY}/{BYTES_PER_KEY}".encode()
    for name in (model, salt):
        yield None if name is None else name.encode("utf-8", "surrogatepass")
    yield more
