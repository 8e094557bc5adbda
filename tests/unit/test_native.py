# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The C++ block hash against a plain Python model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_goodput._C import text_block_hashes, token_block_hashes

MASK = 2**64 - 1
TOKEN_SEED, TEXT_SEED = 0x746F6B656E, 0x74657874

token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=80)


def mix(state: int, value: int) -> int:
    z = ((state ^ value) + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def model(items, block_size: int, seed: int) -> list[int]:
    state, out = mix(seed, block_size), []
    for end in range(block_size, len(items) + 1, block_size):
        for item in items[end - block_size : end]:
            state = mix(state, item)
        out.append(state)
    return out


@given(token_lists, st.integers(1, 20))
def test_tokens_match_the_model(tokens, block_size):
    got = token_block_hashes(np.array(tokens, dtype=np.int32), block_size)
    assert got.dtype == np.uint64
    assert got.tolist() == model(tokens, block_size, TOKEN_SEED)


@given(st.binary(max_size=80), st.integers(1, 20))
def test_text_matches_the_model(text, block_size):
    assert text_block_hashes(text, block_size).tolist() == model(text, block_size, TEXT_SEED)


@given(token_lists, token_lists, st.integers(1, 8))
def test_a_shared_prefix_shares_exactly_its_full_blocks(common, tail, block_size):
    first = token_block_hashes([*common, 1, *tail], block_size).tolist()
    second = token_block_hashes([*common, 2, *tail], block_size).tolist()
    full = len(common) // block_size
    assert first[:full] == second[:full]
    assert not set(first[full:]) & set(second[full:])


def test_text_and_tokens_do_not_share_keys():
    text = b"abcdefgh"
    assert not set(text_block_hashes(text, 4)) & set(token_block_hashes(list(text), 4))


@pytest.mark.parametrize("block_size", [0, -1])
def test_a_block_size_below_one_is_refused(block_size):
    with pytest.raises(ValueError, match="block_size must be > 0"):
        token_block_hashes([1], block_size)


def test_two_dimensions_are_refused():
    with pytest.raises(ValueError, match="one-dimensional"):
        token_block_hashes(np.zeros((2, 2), dtype=np.int64), 1)
