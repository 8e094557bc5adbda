# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Time to find which instances hold how much of a prompt of 16k tokens, and what the index costs to keep.

Everything is called from Python, on one core, on a full index: every instance holds its capacity in blocks of 16
tokens, most of them of sessions on one or two instances behind a system prompt of 1,024 tokens that all share. The
kinds of prompts are asked for in turn, so that none finds the processor's caches to itself. The baseline, a dictionary
from block to a set of instances and an ordered dictionary per instance, holds only the prompts that are asked for.
"""

from __future__ import annotations

import random
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.common import Target
from benchmarks.predictor_latency import one_core
from vllm_goodput._C import PrefixIndex
from vllm_goodput.gateway.prefix_keys import prefix_blocks

Chain = NDArray[np.uint64]

INSTANCES = (64, 512, 2048)
PROMPT = 1024  # blocks: 16k tokens
SYSTEM = 64
SHORT = 64  # blocks of the prompts whose insertion is timed
BATCH = 16  # prompts inserted between two looks at the clock
MAX_CAPACITY = 32_768  # blocks of one instance: a cache of 512k tokens


class Index(Protocol):
    """What is measured, natively and in Python."""

    def add_instance(self, slot: int, capacity_blocks: int) -> None: ...
    def insert(self, slot: int, hashes: Chain) -> None: ...
    def match(self, hashes: Chain) -> Any: ...


class PlainIndex:
    """The baseline."""

    def __init__(self) -> None:
        self._holders: defaultdict[int, set[int]] = defaultdict(set)
        self._held: list[OrderedDict[int, None]] = []
        self._capacity: list[int] = []

    def add_instance(self, slot: int, capacity_blocks: int) -> None:
        """Slots are added in order."""
        self._held.append(OrderedDict())
        self._capacity.append(capacity_blocks)

    def insert(self, slot: int, hashes: Chain) -> None:
        """Later blocks first, so that they are the first to go."""
        held = self._held[slot]
        for block in reversed(hashes.tolist()):
            self._holders[block].add(slot)
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._capacity[slot]:
            block, _ = held.popitem(last=False)
            self._holders[block].remove(slot)
            if not self._holders[block]:
                del self._holders[block]

    def match(self, hashes: Chain) -> list[int]:
        """Walks along the prompt until nobody is left."""
        out = [0] * len(self._held)
        left: set[int] = set()
        for i, block in enumerate(hashes.tolist()):
            holders = self._holders.get(block, set())
            for slot in left - holders:
                out[slot] = i
            left = left & holders if i else set(holders)
            if not left:
                return out
        for slot in left:
            out[slot] = len(hashes)
        return out


class Workload:
    """Prompts to ask for, and where they and their like are held.

    Args:
        instances: of the pool.
        shared: prompts that all instances hold, and as many that they hold to different lengths.
        seed: of the block hashes.
    """

    def __init__(self, instances: int, shared: int, seed: int) -> None:
        self.instances = instances
        self._rng = np.random.default_rng(seed)
        self._choice = random.Random(seed)
        self.system = self._chain(SYSTEM)
        self.sessions = [self._session() for _ in range(200)]
        self.everywhere = [self._chain(PROMPT) for _ in range(shared)]
        self.stairs = [self._chain(PROMPT) for _ in range(shared)]

    def _chain(self, length: int, start: Chain | None = None) -> Chain:
        more = self._rng.integers(0, 2**64, length, dtype=np.uint64)
        return more if start is None else np.concatenate([start, more[len(start) :]])

    def _session(self) -> tuple[Chain, list[int]]:
        chain = self._chain(PROMPT, self.system)
        holders = [
            self._choice.randrange(self.instances) for _ in range(self._choice.choice((1, 2)))
        ]
        return chain, [h for i, h in enumerate(holders) if h not in holders[:i]]

    def fill(self, index: Index, blocks: int) -> None:
        """Sessions that nobody asks for any more, `blocks` blocks of them."""
        while blocks > 0:
            chain, holders = self._session()
            for slot in holders:
                index.insert(slot, chain[: self._choice.randrange(SYSTEM, PROMPT)])
            blocks -= PROMPT // 2 * len(holders)

    def hold(self, index: Index) -> None:
        """The prompts that are asked for."""
        for chain in self.everywhere:
            for slot in range(self.instances):
                index.insert(slot, chain)
        for chain in self.stairs:
            for slot in range(self.instances):
                index.insert(slot, chain[: 1 + slot * PROMPT // self.instances])
        for slot in range(self.instances):
            index.insert(slot, self.system)
        for chain, holders in self.sessions:
            for slot in holders:
                index.insert(slot, chain[: self._choice.randrange(SYSTEM, PROMPT)])

    def prompts(self, rounds: int) -> Iterator[tuple[str, Chain]]:
        """One prompt of each kind in turn."""
        for i in range(rounds):
            yield "session", self._choice.choice(self.sessions)[0]
            yield "only the system prompt", self._chain(PROMPT, self.system)
            yield "nothing held", self._chain(PROMPT)
            yield "all held by all", self.everywhere[i % len(self.everywhere)]
            yield "staircase", self.stairs[i % len(self.stairs)]

    def short(self, count: int) -> list[Chain]:
        """New prompts of 1k tokens."""
        return [self._chain(SHORT) for _ in range(count)]


def measure(instances: int, blocks: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Rows of one size of pool: matches, insertions and memory.

    Args:
        instances: of the pool.
        blocks: capacities of all instances together.
        rounds: prompts of each kind.
        seed: of the hashes.
    """
    shared = 4 if rounds >= 1000 else 2
    work = Workload(instances, shared, seed)
    native, plain = PrefixIndex(), PlainIndex()
    capacity = min(MAX_CAPACITY, max(2 * (shared + 1) * PROMPT, blocks // instances))
    for slot in range(instances):
        native.add_instance(slot, capacity)
        plain.add_instance(slot, capacity)
    work.fill(native, instances * capacity * 5 // 4)
    work.hold(native)
    work.hold(plain)
    rows = []
    with one_core():
        for name, index, count in (("native", native, rounds), ("plain", plain, rounds // 10)):
            rows += _matches(name, index, work, count)
            rows += _insertions(name, index, work, count)
    base = {"instances": instances, "capacity_blocks": capacity}
    memory = {"index": "native", "what": "memory", "blocks": len(native)}
    memory |= {
        "mb": native.memory_bytes / 1e6,
        "bytes_per_block": native.memory_bytes / len(native),
    }
    return [base | row for row in [*rows, memory]]


def _matches(name: str, index: Index, work: Workload, rounds: int) -> list[dict[str, Any]]:
    micros: dict[str, list[float]] = {}
    for kind, chain in work.prompts(rounds):
        begin = time.perf_counter_ns()
        index.match(chain)
        micros.setdefault(kind, []).append((time.perf_counter_ns() - begin) / 1e3)
    return [_row(name, f"match: {kind}", found) for kind, found in micros.items()]


def _insertions(name: str, index: Index, work: Workload, rounds: int) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {
        "insert: new prompt of 1k tokens": [],
        "insert: held prompt": [],
    }
    for i in range(rounds):
        chains = work.short(BATCH)
        for micros in found.values():  # new the first time, held the second
            begin = time.perf_counter_ns()
            for j, chain in enumerate(chains):
                index.insert((i * BATCH + j) % work.instances, chain)
            micros.append((time.perf_counter_ns() - begin) / 1e3 / BATCH)
    return [_row(name, what, micros) for what, micros in found.items()]


def keys(rounds: int, seed: int) -> list[dict[str, Any]]:
    """Rows of making keys from decoded bodies."""
    rng = random.Random(seed)
    text = " ".join(
        rng.choice(["select", "the", "name", "of", "every", "singer"]) for _ in range(900)
    )
    turns = [
        {"role": r, "content": text[:800]} for r in ("system", "user", "assistant", "user", "user")
    ]
    short, long = ([rng.randrange(128_000) for _ in range(n)] for n in (1024, 16_384))
    bodies: dict[str, tuple[dict[str, Any], bool]] = {
        "chat of 4,000 characters": ({"messages": turns}, True),
        "text of 4,000 characters": ({"prompt": text[:4000]}, False),
        "1k token IDs": ({"prompt": short}, False),
        "16k token IDs": ({"prompt": long}, False),
    }
    rows = []
    with one_core():
        for kind, (body, chat) in bodies.items():
            micros = list(_timed(partial(prefix_blocks, body, chat, 1000, "m"), rounds))
            rows.append(_row("native", f"keys: {kind}", micros))
    return rows


def _timed(call: Callable[[], object], rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        call()
        yield (time.perf_counter_ns() - begin) / 1e3


def _row(index: str, what: str, micros: list[float]) -> dict[str, Any]:
    p50, p99 = np.quantile(micros, [0.5, 0.99])
    return {"index": index, "what": what, "p50_us": float(p50), "p99_us": float(p99)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--blocks", type=int, help="capacities of all instances together, blocks")
    args = parser.parse_args(argv)
    blocks = args.blocks or (2**20 if args.quick else 2**23)
    rounds = 100 if args.quick else 1000
    rows = keys(rounds, args.seed)
    for instances in INSTANCES:
        rows += measure(instances, blocks, rounds, args.seed)
    for row in rows:
        print(_line(row))
    at_512 = {
        r["what"]: r["p50_us"]
        for r in rows
        if r.get("instances") == 512 and r["index"] == "native" and "p50_us" in r
    }
    worst = max(us for what, us in at_512.items() if what.startswith("match"))
    targets = [
        Target("match_us", at_512["match: session"], "<=", 15.0),
        Target("match_worst_us", worst, "<=", 15.0),
        Target("insert_us", at_512["insert: new prompt of 1k tokens"], "<=", 15.0),
    ]
    settings = {"seed": args.seed, "blocks": blocks, "rounds": rounds, "prompt_blocks": PROMPT}
    common.write(common.report("prefix_index", settings, rows, targets), args.json)
    return 0


def _line(row: dict[str, Any]) -> str:
    where = f"{row['instances']:5} instances" if "instances" in row else 15 * " "
    start = f"{where}  {row['index']:7} {row['what']:33}"
    if "mb" in row:
        return f"{start} {row['mb']:.0f} MB, {row['bytes_per_block']:.0f} bytes a block of {row['blocks']:,}"
    return f"{start} p50 {row['p50_us']:8.1f}   p99 {row['p99_us']:8.1f} us"


if __name__ == "__main__":
    sys.exit(main())
