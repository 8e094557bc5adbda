# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The upper bound on goodput: against brute force, against schedules that exist, and against sums done by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_goodput.bench.row import TraceRow
from vllm_goodput.emulation import DeviceProfile, StepWork
from vllm_goodput.errors import ConfigError
from vllm_goodput.sim.bound import upper_bound
from vllm_goodput.sim.bound_plans import Demand, Kind, plans_of
from vllm_goodput.sim.bound_prefix import Fresh, fresh_tokens
from vllm_goodput.slo import SLO

EXAMPLES = settings(deadline=None, max_examples=60)


@dataclass(frozen=True)
class Instance:
    name: str
    profile: DeviceProfile
    scale: float = 1.0
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64


def instance(base_ms, prefill_ms, seq_ms, seqs=4, tokens=64, scale=1.0):
    profile = DeviceProfile(
        device="d",
        model="m",
        base_s=base_ms / 1e3,
        per_prefill_token_s=prefill_ms / 1e3,
        per_running_seq_s=seq_ms / 1e3,
        sources={},
    )
    return Instance("i", profile, scale, seqs, tokens)


def row(arrival_s=0.0, prompt_len=1, output_len=1, **slo):
    fields = {n: slo.pop(n) for n in ("session", "prompt", "prefix_ids") if n in slo}
    return TraceRow(
        arrival_s=arrival_s, prompt_len=prompt_len, output_len=output_len, slo=SLO(**slo), **fields
    )


# By hand.


@pytest.mark.parametrize(
    ("late", "slo"),
    [
        # 101 new tokens in two chunks of 64 at most; the last may come in a step that counts as a decode:
        # 2 x (10 + 1) + 100 x 0.5 = 72 ms to the first token, 10 x (10 + 1) = 110 ms to the last.
        (False, {"e2el_ms": 182}),
        (True, {"e2el_ms": 181.9}),
        (False, {"ttft_ms": 72}),
        (True, {"ttft_ms": 71.9}),
        (False, {"tpot_ms": 11}),
        (True, {"tpot_ms": 10.9}),
        (False, {"ttft_ms": 72, "tpot_ms": 11, "e2el_ms": 182}),
        (True, {"ttft_ms": 72, "tpot_ms": 11, "e2el_ms": 181}),
    ],
)
@pytest.mark.parametrize("migration", [False, True])
def test_what_is_too_late_alone_is_not_counted(late, slo, migration):
    pool = [instance(10, 0.5, 1), instance(30, 2, 3)]
    bound = upper_bound([row(0, 101, 11, **slo)], pool, migration=migration)
    assert (bound.requests, bound.feasible_alone, bound.met) == (1, int(not late), int(not late))


def test_scale_multiplies_the_times():
    rows = [row(0, 101, 11, e2el_ms=364)]
    assert upper_bound(rows, [instance(10, 0.5, 1, scale=2)]).met == 1
    assert upper_bound(rows, [instance(10, 0.5, 1, scale=2.01)]).met == 0


@pytest.mark.parametrize(
    ("e2el_ms", "met"),
    [
        # Ten steps each, four sequences to a step of 8 + 4 x 2 ms: 4 ms of it each, 40 ms in all.
        (400, 10),
        (399, 9),
        # Steps of 12 ms on average hold two sequences: 6 ms each, 60 ms in all.
        (120, 2),
        (119, 1),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_machine_time_is_shared(e2el_ms, met, exact):
    rows = [row(0, 1, 10, e2el_ms=e2el_ms)] * 12
    assert upper_bound(rows, [instance(8, 1, 2)], exact=exact).met == met


def test_new_prompt_tokens_take_time_of_their_own():
    # 40 ms as above and 60 x 1 ms.
    rows = [row(0, 61, 10, e2el_ms=500)] * 12
    assert upper_bound(rows, [instance(8, 1, 2)]).met == 5
    # In one session the prompts are the same: (500 - 60) / 40.
    rows = [row(0, 61, 10, e2el_ms=500, session="s")] * 12
    assert upper_bound(rows, [instance(8, 1, 2)]).met == 11


def test_time_before_arrival_is_of_no_use():
    # 60 ms each, as above: two in 120 ms, and two in the 160 ms from the first arrival to the last deadline.
    rows = [row(t, 1, 10, e2el_ms=120) for t in (0, 0, 0, 0.04, 0.04, 0.04)]
    assert upper_bound(rows, [instance(8, 1, 2)], exact=True).met == 2
    rows[3:] = [replace(r, arrival_s=1.0) for r in rows[3:]]
    assert upper_bound(rows, [instance(8, 1, 2)], exact=True).met == 4


def test_migration_lets_a_slow_instance_do_a_part():
    # The fast one needs 50 of 80 ms for a request, the slow one 200: together they can do two, each 8 + 2 steps.
    pool = [instance(4, 1, 1, seqs=1), instance(19, 1, 1, seqs=1)]
    rows = [row(0, 1, 10, e2el_ms=80)] * 3
    for exact in (False, True):
        assert upper_bound(rows, pool, exact=exact, migration=False).met == 1
        assert upper_bound(rows, pool, exact=exact).met == 2


def test_migration_fills_what_is_left_of_each_instance():
    # 100 ms of one of two equal instances each, in 150 ms: one runs on the first until 100 ms, one on the second from
    # 50 ms on, and one before that on the second and after that on the first.
    pool = [instance(9, 1, 1, seqs=1)] * 2
    rows = [row(0, 1, 10, e2el_ms=150)] * 4
    assert upper_bound(rows, pool, exact=True, migration=False).met == 2
    assert upper_bound(rows, pool, exact=True).met == 3


def test_first_tokens_compete_for_the_time_until_they_are_due():
    # 60 x 1 ms and a step's share of 4 ms, in 130 ms.
    rows = [row(0, 61, 10, ttft_ms=130, e2el_ms=5000)] * 5
    for migration in (False, True):
        assert upper_bound(rows, [instance(8, 1, 2)], migration=migration, exact=True).met == 2


def test_without_objectives_everything_counts():
    rows = [row(0, 5, 5)] * 3 + [row(0, 5, 5, tpot_ms=10)] * 3
    bound = upper_bound(rows, [instance(8, 1, 2)])
    assert (bound.met, bound.feasible_alone) == (6, 6)
    assert (bound.slo_attainment, bound.goodput(2.0)) == (1.0, 3.0)


def test_empty_trace_and_wrong_arguments():
    bound = upper_bound([], [instance(8, 1, 2)])
    assert (bound.met, bound.requests, bound.slo_attainment) == (0, 0, None)
    with pytest.raises(ConfigError, match="instances"):
        upper_bound([], [])
    with pytest.raises(ConfigError, match="bins"):
        upper_bound([], [instance(8, 1, 2)], bins=0)
    rows = [row(i / 1e3, 1, 10, e2el_ms=1000) for i in range(600)]
    with pytest.raises(ConfigError, match="exact"):
        upper_bound(rows, [instance(8, 1, 2)], exact=True)


def test_long_traces_and_many_equal_instances():
    # 40 ms of machine time each; 1.2 s from the first arrival to the last deadline.
    rows = [row(i / 2400, 1, 10, e2el_ms=200) for i in range(2400)]
    pool = [instance(8, 1, 2)]
    assert upper_bound(rows, pool * 512).met == 2400
    most = 48 * 1.2 / 0.040
    assert most * 0.9 < upper_bound(rows, pool * 48).met <= most


def test_pools_of_many_kinds_are_simplified_upwards():
    rows = [row(0, 1, 10, e2el_ms=130)] * 60
    bases_ms = (8, 8.3, 8.6, 8.9, 9.2)
    pool = [instance(ms, 1, 2, seqs=2) for ms in bases_ms]
    pool += [instance(ms / 2, 1, 2, seqs=1) for ms in bases_ms]
    apart = sum(
        upper_bound(rows, [i]).value for i in pool
    )  # the requests are alike, so they add up
    for migration in (False, True):
        assert apart < upper_bound(rows, pool, migration=migration).value < 1.3 * apart < 60


# Which tokens are new.


def test_new_tokens_by_kind_of_prompt():
    rows = [
        row(0, 10, session="a"),
        row(1, 25, session="a"),
        row(2, 15, session="a"),
        row(3, 10, session="b"),
        row(4, 600, prefix_ids=(1, 2)),
        row(5, 1400, prefix_ids=(1, 3, 4)),
        row(6, 1400, prefix_ids=(1, 3, 5)),
        row(7, 20, prompt="x" * 80),
        row(8, 30, prompt="x" * 40 + "y" * 80),
        row(9, 30),
    ]
    tokens = [fresh.tokens for fresh in fresh_tokens(rows)]
    assert tokens == [10, 15, 0, 10, 600, 888, 376, 20, 20, 30]


def test_earlier_arrivals_count_in_whatever_order_the_rows_are():
    rows = [row(1, 25, session="a"), row(0, 10, session="a")]
    assert [fresh.tokens for fresh in fresh_tokens(rows)] == [15, 10]


@EXAMPLES
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), max_size=12))
def test_new_tokens_are_those_of_a_trie(prompts):
    seen: set[tuple[int, ...]] = set()
    first: dict[tuple[int, ...], int] = {}
    fresh = []
    for index, prompt in enumerate(prompts):
        nodes = [tuple(prompt[: i + 1]) for i in range(len(prompt))]
        fresh.append([node for node in nodes if node not in seen])
        seen.update(nodes)
        first |= dict.fromkeys(fresh[-1], index)
    lasts = [tuple(prompt) for prompt in prompts]
    charged = [
        max(0, len(nodes) - sum(first[last] == index for last in lasts))
        for index, nodes in enumerate(fresh)
    ]
    found = fresh_tokens([row(i, len(p), prompt=p) for i, p in enumerate(prompts)])
    assert [f.tokens for f in found] == [len(nodes) for nodes in fresh]
    assert [f.charged for f in found] == charged


# Against brute force.


@st.composite
def small_cases(draw, most=8, sessions=False):
    pool = [
        instance(
            draw(st.sampled_from([4, 8, 15])),
            draw(st.sampled_from([0.25, 1, 6])),
            draw(st.sampled_from([0, 0.5, 2])),
            draw(st.integers(1, 4)),
            draw(st.sampled_from([8, 32])),
        )
        for _ in range(2)
    ]
    rows = []
    for _ in range(draw(st.integers(1, most))):
        slo = {"e2el_ms": draw(st.integers(20, 400))}
        if draw(st.integers(0, 3)) == 0:
            slo["ttft_ms"] = draw(st.integers(10, 200))
        if draw(st.integers(0, 3)) == 0:
            slo["tpot_ms"] = draw(st.integers(5, 30))
        session = draw(st.sampled_from([None, "s"])) if sessions else None
        arrival_s = draw(st.integers(0, 150)) / 1e3
        lengths = draw(st.integers(1, 40)), draw(st.integers(1, 12))
        rows.append(row(arrival_s, *lengths, session=session, **slo))
    return rows, pool


def works(request: TraceRow, machine: Any) -> list[tuple[float, float, float]] | None:
    """(from, to, machine time) in ms of first token, decode, and both; None if the instance is too slow."""
    slo, decodes, tokens = request.slo, request.output_len - 1, request.prompt_len - 1
    base, per_seq = machine.profile.base_s * 1e3, machine.profile.per_running_seq_s * 1e3
    one, seqs = base + per_seq, machine.max_num_seqs
    per_token = min(machine.profile.per_prefill_token_s * 1e3, base / seqs + per_seq, one / 2)
    before = (
        -(-request.prompt_len // machine.max_num_batched_tokens) - 1
    ) * one + tokens * per_token
    pace = (slo.tpot_ms or 1e9) * decodes
    due = min(slo.e2el_ms, (slo.ttft_ms or 1e9) + pace)
    first_due = min(slo.ttft_ms or 1e9, due - decodes * one)
    left = min(due - before - one, pace)
    if before + one > first_due + 1e-6 or left < decodes * one - 1e-6:
        return None

    def batch(time):
        return min(seqs, max(1, (time - base) / per_seq)) if per_seq else seqs

    def share(time):
        return base / batch(time) + per_seq

    first_step = base + per_seq * batch(first_due - before)
    first = share(first_due - before)
    rest = decodes * share(left / decodes) if decodes else 0.0
    both = (decodes + 1) * share(min(due - before, pace + first_step) / (decodes + 1))
    at = request.arrival_s * 1e3
    return [
        (at, at + first_due, tokens * per_token + first),
        (at + before + one, at + due, rest),
        (at, at + due, max(0.0, both - first - rest)),
    ]


def fits(jobs: list[tuple[float, float, float]]) -> bool:
    """Preemptive EDF on one machine."""
    left = [[end, start, work] for start, end, work in jobs]
    now = 0.0
    while left:
        ready = [job for job in left if job[1] <= now]
        later = [job[1] for job in left if job[1] > now]
        if not ready:
            now = min(later)
            continue
        job = min(ready)
        run = min(job[2], min(later, default=now + job[2]) - now)
        now += run
        job[2] -= run
        if job[2] <= 1e-9:
            left.remove(job)
            if now > job[0] + 1e-4:
                return False
    return True


def brute_force(rows: list[TraceRow], pool: list[Instance]) -> int:
    """The most requests over all assignments to an instance or none."""
    able = []
    for machine in pool:
        jobs = [works(request, machine) for request in rows]
        sets = []
        for mask in range(1 << len(rows)):
            chosen = [jobs[i] for i in range(len(rows)) if mask >> i & 1]
            if None not in chosen and fits([job for pair in chosen for job in pair]):
                sets.append(mask)
        able.append(sets)
    return max((a | b).bit_count() for a in able[0] for b in able[1] if not a & b)


@EXAMPLES
@given(small_cases())
def test_exact_equals_brute_force(case):
    rows, pool = case
    assert upper_bound(rows, pool, exact=True, migration=False).met == brute_force(rows, pool)


@EXAMPLES
@given(small_cases(sessions=True), st.sampled_from([None, 1, 5, 40]))
def test_relaxations_are_ordered(case, bins):
    rows, pool = case
    stay, move = (upper_bound(rows, pool, exact=True, migration=m).met for m in (False, True))
    assert stay <= move <= move + 1e-6
    assert stay <= upper_bound(rows, pool, bins=bins, migration=False).value + 1e-6
    assert move <= upper_bound(rows, pool, bins=bins).value + 1e-6
    assert upper_bound(rows, pool, bins=bins).met <= len(rows)


@EXAMPLES
@given(small_cases(), st.floats(1.05, 3))
def test_better_conditions_do_not_lower_it(case, factor):
    rows, pool = case

    def met(rows, pool):
        return upper_bound(rows, pool, exact=True, migration=False).met

    now = met(rows, pool)
    later = [
        replace(r, slo=SLO(**{name: v * factor for name, v in r.slo.as_dict().items()}))
        for r in rows
    ]
    assert met(later, pool) >= now
    assert met(rows, [replace(i, scale=1 / factor) for i in pool]) >= now
    assert met(rows, [*pool, pool[0]]) >= now
    assert now - 1 <= met(rows[1:], pool) <= now
    assert met([replace(r, output_len=max(1, r.output_len - 1)) for r in rows], pool) >= now


# Against runs of a request, and schedules, that exist.


def random_run(rng):
    """Kinds, and the steps of one request: (kind, sequences in the step)."""
    kinds = [
        Kind(base_s, rng.choice([0.0, 1.0, 3.0]), rng.choice([0.0, 0.2]), rng.choice([1, 4, 12]), 8)
        for base_s in (rng.uniform(1, 3), rng.uniform(3, 12), rng.uniform(10, 30))
    ]
    steps = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(len(kinds))
        sequences = rng.randint(1, kinds[kind].max_seqs)
        steps += [(kind, sequences)] * rng.choice([1, 3, 20])
    return kinds, steps


def cheapest(plans, prices):
    """Cost of the cheapest plan of each group, added up."""
    costs = [0.0] * len(plans.plan_group)
    for plan, piece in plans.pieces:
        costs[plan] += prices[piece.kind] * piece.work_s
    groups: dict[int, list[float]] = {}
    for cost, group in zip(costs, plans.plan_group, strict=True):
        groups.setdefault(group, []).append(cost)
    assert len(groups) == len(plans.group_request)
    return sum(map(min, groups.values()))


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(0, 20),
    st.lists(st.sampled_from(["e2el", "ttft", "tpot"]), min_size=1, unique=True),
)
def test_no_run_in_time_is_cheaper_than_every_plan(seed, tokens, parts):
    rng = random.Random(seed)
    for _ in range(200):
        kinds, steps = random_run(rng)
        used = {kind for kind, _ in steps}
        prices = [rng.choice([0.0, 1.0, 10 ** rng.uniform(-1, 1.5)]) for _ in kinds]
        (first, batch), rest = steps[0], steps[1:]
        chunks = -(-(tokens + 1) // 8) - 1
        prefill_s = chunks * kinds[first].step_s(1) + tokens * kinds[first].token_s
        ttft_s = prefill_s + kinds[first].step_s(batch)
        decode_s = sum(kinds[kind].step_s(n) for kind, n in rest)
        time_s = {"e2el": ttft_s + decode_s, "ttft": ttft_s, "tpot": decode_s / max(1, len(rest))}
        slo = SLO(**{f"{name}_ms": (time_s[name] or 1.0) * 1e3 for name in parts})
        cost = sum(prices[kind] * kinds[kind].share_s(n) for kind, n in steps)
        cost += sum(prices[kind] * tokens * kinds[kind].token_s for kind in used)
        demand = Demand(0.0, len(steps), Fresh(tokens + 1, tokens), slo)
        for migration in {True, len(used) > 1}:
            plans = plans_of([demand], kinds, migration)
            assert plans.feasible == [True]
            assert cheapest(plans, prices) <= cost * (1 + 1e-6)


class Engines:
    """Steps of several engines under a scheduler that decides at random; what happens is possible, if not wise."""

    def __init__(self, rows, pool, seed, eager, moving):
        self.rows, self.pool, self.rng = rows, pool, random.Random(seed)
        self.eager, self.moving, self.moves = eager, moving, 0
        self.clock = [0.0] * len(pool)
        self.home: list[int | None] = [None] * len(rows)
        self.ready_s = [r.arrival_s for r in rows]
        self.computed, self.made = [0] * len(rows), [0] * len(rows)
        self.first_s, self.last_s = {}, {}
        self.cache: list[dict[str, int]] = [{} for _ in pool]

    def run(self):
        while len(self.last_s) < len(self.rows):
            at = min(range(len(self.pool)), key=self.clock.__getitem__)
            now = self.clock[at]
            here = [i for i in self.open() if self.ready_s[i] <= now and self.home[i] in (None, at)]
            chunks = self.choose(here, at)
            if chunks:
                self.step(at, chunks)
            else:
                later = [self.ready_s[i] for i in self.open() if self.ready_s[i] > now]
                self.clock[at] = min([*later, now + 0.005])
        return self

    def open(self):
        return [i for i in range(len(self.rows)) if i not in self.last_s]

    def choose(self, here, at):
        chunks, left = {}, self.pool[at].max_num_batched_tokens
        self.rng.shuffle(here)
        for i in here:
            if len(chunks) == self.pool[at].max_num_seqs or not left:
                break
            if not self.eager and self.rng.random() < 0.3:
                continue
            if self.home[i] is None:
                self.home[i] = at
                known = self.cache[at].get(self.rows[i].session or str(i), 0)
                self.computed[i] = min(known, self.rows[i].prompt_len + self.made[i] - 1)
            need = self.rows[i].prompt_len + self.made[i] - self.computed[i]
            chunks[i] = min(
                left, need if self.eager else self.rng.choice([1, self.rng.randint(1, need)])
            )
            left -= chunks[i]
        return chunks

    def step(self, at, chunks):
        prefill = sum(n for n in chunks.values() if n > 1)
        machine = self.pool[at]
        end_s = self.clock[at] + machine.profile.step_s(StepWork(prefill, len(chunks)))
        self.clock[at] = end_s
        for i, chunk in chunks.items():
            request = self.rows[i]
            self.computed[i] += chunk
            key, kept = request.session or str(i), min(self.computed[i], request.prompt_len)
            self.cache[at][key] = max(self.cache[at].get(key, 0), kept)
            if self.computed[i] == request.prompt_len + self.made[i]:
                self.made[i] += 1
                self.first_s.setdefault(i, end_s)
                if self.made[i] == request.output_len:
                    self.last_s[i] = end_s
            self.ready_s[i] = end_s
            if self.moving and self.rng.random() < 0.1:
                self.home[i] = None
                self.moves += 1

    def slo(self, i, parts):
        """The tightest objectives that the schedule meets."""
        arrival_s, decodes = self.rows[i].arrival_s, self.rows[i].output_len - 1
        tpot_s = (self.last_s[i] - self.first_s[i]) / decodes if decodes else 1.0
        e2el_s, ttft_s = self.last_s[i] - arrival_s, self.first_s[i] - arrival_s
        values = {"e2el_ms": e2el_s, "ttft_ms": ttft_s, "tpot_ms": tpot_s}
        return SLO(**{name: values[name] * 1e3 * (1 + 1e-12) for name in parts})


@settings(deadline=None, max_examples=200)
@given(
    small_cases(most=14, sessions=True),
    st.integers(0, 2**32),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(["e2el_ms", "ttft_ms", "tpot_ms"]), min_size=1, unique=True),
)
def test_what_a_schedule_meets_is_within_the_bound(case, seed, eager, moving, parts):
    rows, pool = case
    engines = Engines(rows, pool, seed, eager, moving).run()
    rows = [replace(r, slo=engines.slo(i, parts)) for i, r in enumerate(rows)]
    for exact in (False, True):
        for migration in {True, engines.moves > 0}:
            bound = upper_bound(rows, pool, exact=exact, migration=migration, bins=None)
            assert bound.met == bound.feasible_alone == len(rows)


@EXAMPLES
@given(small_cases(most=14, sessions=True), st.integers(0, 2**32), st.booleans())
def test_no_random_schedule_meets_more(case, seed, moving):
    rows, pool = case
    engines = Engines(rows, pool, seed, True, moving).run()
    met = 0
    for i, request in enumerate(rows):
        decode_s = engines.last_s[i] - engines.first_s[i]
        met += request.slo.met_by(
            engines.first_s[i] - request.arrival_s,
            decode_s / max(1, request.output_len - 1),
            engines.last_s[i] - request.arrival_s,
        )
    assert met <= upper_bound(rows, pool, migration=engines.moves > 0).met
