# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""KV events in prompt keys, against a model of a prefix cache with copies."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.kv_publisher import removed, stored
from tests.fakes.kv_sink import Indexed
from vllm_goodput.gateway.kv_blocks import KvBlocks, KvEventCounters
from vllm_goodput.router.prefix import token_blocks

HALF = [[7] * 16, [8] * 16]


def tokens_of(path, halves: int) -> list[int]:
    """A block is one or two runs of 16 equal tokens; larger ones may begin alike."""
    return [t for block in path for half in range(halves) for t in HALF[block >> half & 1]]


paths = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
steps = st.tuples(st.booleans(), paths, st.integers(0, 3))


@pytest.mark.parametrize("halves", [1, 2])
@given(sequence=st.lists(steps, max_size=30))
def test_the_index_holds_what_the_cache_holds(halves, sequence):
    size, sink = 16 * halves, Indexed()
    blocks = KvBlocks("a", "m", sink, KvEventCounters())
    copies: Counter[tuple[int, ...]] = Counter()
    for store, path, cut in sequence:
        path = tuple(b % 2**halves for b in path)
        names = stored(tokens_of(path, halves), size)["block_hashes"]
        if store:
            cut = min(cut, len(path) - 1)
            if cut and not copies[path[:cut]]:
                continue  # the engine stores no block behind one that it does not hold
            new = [path[: i + 1] for i in range(cut, len(path))]
            parent = names[cut - 1] if cut else None
            blocks.apply([stored(tokens_of(path[cut:], halves), size, parent)])
            if not (cut == 0 and len(path) > 1 and all(copies[p] for p in new)):
                copies.update(new)
        else:
            blocks.apply([removed([names[-1]])])
            copies[path] -= copies[path] > 0
        held = {p for p, count in copies.items() if count}
        assert len(blocks) == len(held)
        for asked in {tuple(b % 2**halves for b in p) for _, p, _ in sequence}:
            whole = next(
                i for i in range(len(asked) + 1) if asked[: i + 1] not in held or i == len(asked)
            )
            keys = token_blocks(tokens_of(asked, halves), "m")
            assert keys is not None
            matched = sink.index.match(keys.hashes)
            hits = keys.hit_tokens(matched, len(asked) * size + 1, size)
            assert hits.tolist() == [whole * size]
