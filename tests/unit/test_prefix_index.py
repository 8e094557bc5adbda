# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The native prefix index against a plain Python model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_goodput._C import PrefixIndex, token_block_hashes

Path = tuple[int, ...]  # a block is the path of tokens up to it


def hashes(path) -> np.ndarray:
    """One hash per token of a path, each of the whole path up to it."""
    return token_block_hashes(np.array(path, dtype=np.int64), 1)


def prefixes(path: Path) -> list[Path]:
    return [path[:end] for end in range(1, len(path) + 1)]


@dataclass
class ModelInstance:
    """Blocks held, from the most to the least recently used."""

    capacity: int
    blocks: list[Path] = field(default_factory=list)

    def use(self, chain: list[Path]) -> None:
        chain = chain[: self.capacity]
        others = [b for b in self.blocks if b not in chain]
        self.blocks = (chain + others)[: self.capacity]

    def extend(self, parent: Path, more: list[Path]) -> None:
        before = []
        while parent and parent in self.blocks:
            before.insert(0, parent)
            parent = parent[:-1]
        self.use([*before, *more])

    def match(self, path: Path) -> int:
        held = set(self.blocks)
        return next((i for i, p in enumerate(prefixes(path)) if p not in held), len(path))


class Both:
    """The index and its model, driven together and compared."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.model: dict[int, ModelInstance] = {}
        self.paths: set[Path] = set()

    def apply(self, step) -> None:
        kind, slot, path, cut = step
        slot *= SPREAD
        self.paths.add(path)
        if kind == "add":
            self.index.add_instance(slot, cut)
            instance = self.model.setdefault(slot, ModelInstance(cut))
            instance.capacity = cut
            instance.blocks = instance.blocks[:cut]
        elif kind == "remove":
            self.index.remove_instance(slot)
            self.model.pop(slot, None)
        elif slot not in self.model:
            with pytest.raises(IndexError, match=f"no instance at slot {slot}"):
                self.index.insert(slot, hashes(path))
        elif kind == "clear":
            self.index.clear_instance(slot)
            self.model[slot].blocks = []
        elif kind == "insert":
            self.index.insert(slot, hashes(path))
            self.model[slot].use(prefixes(path))
        elif kind == "extend":
            cut = min(cut, len(path) - 1)
            if cut > 0:
                more = hashes(path)
                self.index.extend(slot, int(more[cut - 1]), more[cut:])
                self.model[slot].extend(path[:cut], prefixes(path)[cut:])
        else:
            gone = slice(cut, cut + 2)
            self.index.evict(slot, hashes(path)[gone])
            self.model[slot].blocks = [
                b for b in self.model[slot].blocks if b not in prefixes(path)[gone]
            ]

    def compare(self) -> None:
        held = [set(i.blocks) for i in self.model.values()]
        assert len(self.index) == sum(map(len, held))
        assert self.index.distinct == len(set().union(*held))
        for slot, instance in self.model.items():
            assert self.index.held(slot) == len(instance.blocks)
            assert self.index.capacity(slot) == instance.capacity
        for path in self.paths:
            got = self.index.match(hashes(path))
            assert got.dtype == np.int32
            want = [
                self.model[slot].match(path) if slot in self.model else 0
                for slot in range(self.index.slots)
            ]
            assert got.tolist() == want
            for slot, instance in self.model.items():
                for block, key in zip(prefixes(path), hashes(path), strict=True):
                    assert self.index.contains(slot, int(key)) == (block in instance.blocks)


SPREAD = 37  # slots in several words of a set
paths = st.lists(st.integers(0, 2), max_size=9).map(tuple)
KINDS = ["add", "insert", "insert", "insert", "extend", "evict", "clear", "remove"]
steps = st.tuples(st.sampled_from(KINDS), st.integers(0, 4), paths, st.integers(0, 12))


@settings(max_examples=300)
@given(st.lists(steps, max_size=40))
def test_any_sequence_of_changes_gives_what_the_model_gives(sequence):
    both = Both()
    for slot in range(0, 4, 2):
        both.apply(("add", slot, (), 6 + slot))
    for step in sequence:
        both.apply(step)
        both.compare()


long_changes = st.lists(
    st.tuples(st.integers(0, 79), st.integers(0, 300), st.integers(0, 1)), min_size=1, max_size=60
)
removals = st.lists(st.tuples(st.integers(0, 79), st.integers(0, 300)), max_size=6)


@settings(max_examples=60)
@given(long_changes, removals, st.integers(1, 300))
def test_long_chains_on_many_instances(inserted, removed, asked):
    """Every way in which a long match is bisected."""
    chain = [hashes([branch, *range(299)]) for branch in (0, 1)]
    index = PrefixIndex()
    held: dict[int, list[set[int]]] = {slot: [set(), set()] for slot in range(80)}
    for slot in held:
        index.add_instance(slot, 1000)
    for slot, length, branch in inserted:
        index.insert(slot, chain[branch][:length])
        held[slot][branch] |= set(range(length))
    for slot, block in removed:
        index.evict(slot, chain[0][block : block + 1])
        held[slot][0].discard(block)
    for branch in (0, 1):
        want = [
            next(i for i in range(asked + 1) if i not in held[slot][branch] or i == asked)
            for slot in range(80)
        ]
        assert index.match(chain[branch][:asked]).tolist() == want


def test_the_later_blocks_of_a_chain_go_first():
    index = PrefixIndex()
    index.add_instance(0, 5)
    index.insert(0, hashes([1, 2, 3]))
    index.insert(0, hashes([7, 8, 9]))
    assert index.match(hashes([1, 2, 3])).tolist() == [2]
    assert index.match(hashes([7, 8, 9])).tolist() == [3]


def test_a_hole_ends_a_match_until_the_block_is_back():
    chain = hashes(range(10))
    index = PrefixIndex()
    index.add_instance(0, 100)
    index.insert(0, chain)
    index.evict(0, chain[4:6])
    assert index.match(chain).tolist() == [4]
    index.extend(0, int(chain[4]), chain[5:6])
    assert index.match(chain).tolist() == [4]
    index.extend(0, int(chain[3]), chain[4:5])
    assert index.match(chain).tolist() == [10]


def test_a_removed_instance_comes_back_empty():
    index = PrefixIndex()
    index.add_instance(3, 10)
    index.insert(3, hashes([1, 2]))
    index.remove_instance(3)
    assert not index.has_instance(3)
    assert (len(index), index.distinct) == (0, 0)
    index.add_instance(3, 10)
    assert index.match(hashes([1, 2])).tolist() == [0, 0, 0, 0]


def test_every_slot_up_to_the_limit():
    chain = hashes(range(50))
    index = PrefixIndex()
    for slot in range(PrefixIndex.MAX_SLOTS):
        index.add_instance(slot, 50)
        index.insert(slot, chain[: slot % 51])
    assert index.match(chain).tolist() == [slot % 51 for slot in range(PrefixIndex.MAX_SLOTS)]


@pytest.mark.parametrize("slot", [-1, PrefixIndex.MAX_SLOTS])
def test_slots_outside_are_refused(slot):
    index = PrefixIndex()
    with pytest.raises(IndexError, match="slot must be in"):
        index.add_instance(slot, 1)
    index.remove_instance(slot)
    assert not index.has_instance(slot)


def test_memory_follows_what_is_held():
    index = PrefixIndex()
    empty = index.memory_bytes
    for slot in range(8):
        index.add_instance(slot, 5000)
    for prompt in range(200):
        index.insert(prompt % 8, hashes([prompt, *range(499)]))
    assert len(index) == 8 * 5000
    assert index.memory_bytes - empty < 160 * len(index)
    for slot in range(8):
        index.remove_instance(slot)
    assert index.memory_bytes < empty + 100_000


def test_large_tables_grow_and_shrink_with_what_is_held():
    rng = np.random.default_rng(0)
    index = PrefixIndex()
    for slot in range(3):
        index.add_instance(slot, 100_000)
    chains = [rng.integers(0, 2**64, 400, dtype=np.uint64) for _ in range(150)]
    for number, chain in enumerate(chains):
        for slot in range(number % 3 + 1):
            index.insert(slot, chain)
    for number, chain in enumerate(chains):
        if number % 10:
            index.evict(0, chain[rng.permutation(400)])
            index.evict(1, chain[number:])
    for number, chain in enumerate(chains):
        held = [400, 400 * (number % 3 >= 1), 400 * (number % 3 == 2)]
        if number % 10:
            held = [0, min(held[1], number), held[2]]
        assert index.match(chain).tolist() == held


def test_only_one_dimensional_uint64_is_taken():
    index = PrefixIndex()
    index.add_instance(0, 1)
    with pytest.raises(TypeError):
        index.insert(0, np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="one-dimensional"):
        index.match(np.zeros((2, 2), dtype=np.uint64))
