# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The simulated engine against hand-computed times, and against itself deciding step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_goodput.emulation import DeviceProfile
from vllm_goodput.sim.engine import Engine
from vllm_goodput.sim.sequence import Seq
from vllm_goodput.sim.spec import SimInstance

# 100 ms per step, 1 ms per prompt token, 10 ms per sequence.
PROFILE = DeviceProfile(
    device="test",
    model="test",
    base_s=0.1,
    per_prefill_token_s=0.001,
    per_running_seq_s=0.01,
    sources={},
)
SYNC = SimInstance(
    name="i",
    profile=PROFILE,
    max_num_seqs=4,
    max_num_batched_tokens=100,
    kv_tokens=16_000,
    async_scheduling=False,
)
ASYNC = replace(SYNC, async_scheduling=True)


@dataclass(frozen=True)
class Plan:
    """A request of a test: keys as in Seq, and when it leaves early, if it does."""

    at_s: float
    prompt_len: int
    output_len: int
    session: int | None = None
    leaves_s: float | None = None


def drive(
    spec: SimInstance, plans: list[Plan], macro: bool = True
) -> tuple[list[tuple[float, int, bool, bool]], Engine, list[Seq]]:
    """Outputs as (time, request, first, last); checks the cache's bounds at every event."""
    engine = Engine(spec, macro)
    seqs = []
    for index, plan in enumerate(plans):
        own = (2 * index + 1) * 10**6
        start = own if plan.session is None else 2 * plan.session * 10**6
        keys = range(start, start + plan.prompt_len // spec.block_size)
        seqs.append(Seq(plan.prompt_len, plan.output_len, keys, own))
    index_of = {seq: index for index, seq in enumerate(seqs)}
    outside = [(plan.at_s, i, "submit") for i, plan in enumerate(plans)]
    outside += [(p.leaves_s, i, "leave") for i, p in enumerate(plans) if p.leaves_s is not None]
    outside.sort()
    found = []
    while outside or engine.next_s < float("inf"):
        at_s, index, what = outside[0] if outside else (float("inf"), -1, "")
        if engine.next_s <= at_s:
            outputs = engine.advance(engine.next_s)
            found += [(o.at_s, index_of[o.seq], o.first, o.last) for o in outputs]
        else:
            del outside[0]
            if what == "submit":
                engine.submit(seqs[index], at_s)
            elif not seqs[index].gone:
                engine.remove(seqs[index], at_s)
        assert 0 <= engine.cache.free <= engine.cache.blocks
        assert len(engine.running) <= spec.max_num_seqs
    return found, engine, seqs


@pytest.mark.parametrize("spec", [SYNC, ASYNC])
def test_one_request_alone_takes_its_isolated_latency(spec):
    found, _, _ = drive(spec, [Plan(1.0, 50, 11)])
    prefill_s = 0.1 + 50 * 0.001 + 0.01
    assert [(i, first, last) for _, i, first, last in found] == [(0, True, False), (0, False, True)]
    assert found[0][0] == pytest.approx(1.0 + prefill_s)
    assert found[1][0] == pytest.approx(1.0 + prefill_s + 10 * 0.11)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks():
    found, engine, _ = drive(SYNC, [Plan(0.0, 250, 1)])
    # 100 + 100 + 50 tokens.
    assert found == [(pytest.approx(0.21 + 0.21 + 0.16), 0, True, True)]
    assert (engine.steps, engine.prefilled) == (3, 250)


def test_decodes_come_before_prompts_and_share_their_steps():
    # Step 1: prompt of 10 (0.12 s); B arrives in it. Step 2: A decodes, B gets 99 of its 150 tokens; step 3: the rest.
    found, _, _ = drive(SYNC, [Plan(0.0, 10, 4), Plan(0.05, 150, 1)])
    step1, step2, step3 = 0.12, 0.1 + 0.099 + 0.02, 0.1 + 0.051 + 0.02
    assert found == [
        (pytest.approx(step1), 0, True, False),
        (pytest.approx(step1 + step2 + step3), 1, True, True),
        (pytest.approx(step1 + step2 + step3 + 0.11), 0, False, True),
    ]


def test_asynchronous_scheduling_delays_an_arrival_by_one_step():
    plans = [Plan(0.0, 10, 20), Plan(1.0, 10, 2)]
    # A: prefill until 0.12, then steps of 0.11; the one in which B arrives ends at 0.12 + 9 x 0.11 = 1.0 + ...
    boundary = 0.12 + 8 * 0.11
    assert boundary == pytest.approx(1.0)
    plans[1] = replace(plans[1], at_s=1.05)
    ends = {}
    for spec in (SYNC, ASYNC):
        found, _, _ = drive(spec, plans)
        ends[spec.async_scheduling] = next(at_s for at_s, i, first, _ in found if i == 1 and first)
    with_b = 0.1 + 0.01 + 2 * 0.01
    assert ends[False] == pytest.approx(boundary + 0.11 + with_b)
    assert ends[True] == pytest.approx(boundary + 0.11 + 0.11 + with_b)


def test_waiting_requests_are_admitted_in_order_as_places_become_free():
    spec = replace(SYNC, max_num_seqs=1)
    found, _, _ = drive(spec, [Plan(0.0, 10, 2), Plan(0.01, 10, 1), Plan(0.02, 10, 1)])
    assert [(i, last) for _, i, _, last in found if last] == [(0, True), (1, True), (2, True)]
    assert found[-1][0] == pytest.approx(0.12 + 0.11 + 0.12 + 0.12)


def test_a_session_skips_the_full_blocks_of_its_earlier_prompt():
    found, engine, seqs = drive(SYNC, [Plan(0.0, 64, 1, 0), Plan(5.0, 90, 1, 0)])
    assert seqs[1].cached == 64
    assert found[1][0] == pytest.approx(5.0 + 0.1 + 26 * 0.001 + 0.01)
    assert engine.prefilled == 64 + 26


def test_the_last_token_is_always_computed():
    _, _, seqs = drive(SYNC, [Plan(0.0, 64, 1, 0), Plan(5.0, 64, 1, 0)])
    assert seqs[1].cached == 48  # whole blocks only


def test_without_prefix_caching_nothing_is_found():
    _, _, seqs = drive(
        replace(SYNC, prefix_caching=False), [Plan(0.0, 64, 1, 0), Plan(5.0, 64, 1, 0)]
    )
    assert seqs[1].cached == 0


def test_the_least_recently_used_blocks_make_room():
    # 8 blocks; A leaves 4 full ones, B 4: C needs 3 new ones, so A's last three are gone, and B's are there.
    spec = replace(SYNC, kv_tokens=8 * 16)
    plans = [Plan(0.0, 64, 1, 0), Plan(1.0, 64, 1, 1), Plan(2.0, 48, 1, 2)]
    for session, cached in ((0, 16), (1, 48)):
        _, _, seqs = drive(spec, [*plans, Plan(3.0, 64, 1, session)])
        assert seqs[-1].cached == cached


def test_the_last_admitted_is_preempted_and_computed_again():
    # 5 blocks of 16 tokens. A and B have 2 each; A needs a third for its token 33, B a third for its own: none is left.
    spec = replace(SYNC, kv_tokens=5 * 16, prefix_caching=False)
    found, engine, seqs = drive(spec, [Plan(0.0, 32, 10), Plan(0.01, 31, 10)])
    assert [seq.preemptions for seq in seqs] == [0, 1]
    lasts = [i for _, i, _, last in found if last]
    assert lasts == [0, 1]
    assert engine.prefilled == 32 + 31 + 33  # B again, with the two tokens it had
    assert sum(first for _, _, first, _ in found) == 2  # a first token comes once
    assert engine.cache.free == 5


def test_slower_steps_from_the_next_decision_on():
    engine = Engine(SYNC)
    seq = Seq(10, 3)
    engine.submit(seq, 0.0)
    engine.advance(0.0)
    engine.set_slowdown(2.0, 0.05)
    assert engine.advance(0.12)[0].at_s == pytest.approx(0.12)
    assert engine.advance(10.0)[0].at_s == pytest.approx(0.12 + 2 * 0.22)


def test_tokens_between_events():
    engine = Engine(SYNC)
    seq = Seq(10, 50)
    engine.submit(seq, 0.0)
    engine.advance(0.0)
    assert engine.tokens(seq, 0.1) == 0
    engine.advance(0.13)
    for steps in range(5):
        assert engine.tokens(seq, 0.12 + 0.11 * steps + 0.05) == 1 + steps
    assert engine.remove(seq, 0.12 + 0.11 * 7 + 0.05) == 8
    assert engine.cache.used == 0


def apart(plans: list[Plan]) -> list[Plan]:
    """The same with no event exactly at the end of a step, where either order would be right."""
    return [
        replace(
            plan,
            at_s=plan.at_s + 1.7e-5 * (i + 1),
            leaves_s=plan.leaves_s and plan.leaves_s + 1.3e-5 * (i + 1),
        )
        for i, plan in enumerate(plans)
    ]


PLANS = st.lists(
    st.builds(
        Plan,
        at_s=st.integers(0, 3000).map(lambda ms: ms * 1e-3),
        prompt_len=st.integers(1, 150),
        output_len=st.integers(1, 60),
        session=st.one_of(st.none(), st.integers(0, 2)),
        leaves_s=st.one_of(st.none(), st.none(), st.integers(3001, 6000).map(lambda ms: ms * 1e-3)),
    ),
    min_size=1,
    max_size=12,
).map(apart)
SPECS = st.builds(
    SimInstance,
    name=st.just("i"),
    profile=st.just(PROFILE),
    scale=st.sampled_from([0.1, 0.37, 1.0]),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 200),
    kv_tokens=st.sampled_from([224, 320, 640, 100_000]),
    block_size=st.sampled_from([1, 4, 16]),
    prefix_caching=st.booleans(),
    async_scheduling=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(SPECS, PLANS)
def test_steps_decided_together_change_nothing(spec, plans):
    together, engine, seqs = drive(spec, plans)
    single, engine1, seqs1 = drive(spec, plans, macro=False)
    assert [event[1:] for event in together] == [event[1:] for event in single]
    assert [event[0] for event in together] == pytest.approx([event[0] for event in single])
    assert (engine.steps, engine.prefilled) == (engine1.steps, engine1.prefilled)
    assert [(s.cached, s.preemptions) for s in seqs] == [(s.cached, s.preemptions) for s in seqs1]


@settings(max_examples=200, deadline=None)
@given(SPECS, PLANS)
def test_every_request_ends_once_and_leaves_nothing(spec, plans):
    found, engine, seqs = drive(spec, plans)
    for index, (plan, seq) in enumerate(zip(plans, seqs, strict=True)):
        events = [(first, last) for _, i, first, last in found if i == index]
        assert sum(first for first, _ in events) <= 1
        assert sum(last for _, last in events) == 1 or plan.leaves_s is not None
        assert seq.gone
    assert engine.cache.used == 0
    assert not engine.running
    assert not engine.waiting
