# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Moves of running requests, explanations, prefix hits: the router beyond a single decision."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.test_router import FAST, PREFILL, SLOW, dispatch, make, request, teach
from vllm_goodput.predictor.constant import narrow
from vllm_goodput.router import Dispatch, Hold, Reject, RequestInfo
from vllm_goodput.router.prefix import token_blocks
from vllm_goodput.slo import SLO


def start(router, info, name, now_s=0.0, lengths=None):
    """Dispatch a request to an instance of our choice, and let its first token come."""
    other = frozenset(router.instances) - {name}
    decision = router.route(
        RequestInfo(
            info.request_id, info.prompt_len, info.arrival_s, streaming=True, excluded=other
        ),
        now_s,
        lengths,
    )
    assert isinstance(decision, Dispatch)
    router.on_dispatched(info, decision, now_s)
    router.on_first_token(info.request_id, now_s + 0.02)


@pytest.fixture(params=["goodput", "just_enough", "global"])
def endangered(request):
    """A request of 300 tokens on the slow instance that needs the fast one: 30 s there, 10 s until its deadline."""
    router = make(request.param, lengths=300)
    info = RequestInfo("r0", 100, 0.0, SLO(e2el_ms=10_000))
    start(router, info, "slow", lengths=narrow(300))
    router.on_progress("r0", 20, 2.0)
    return router


def test_an_endangered_request_moves_to_where_it_makes_it(endangered):
    (move,) = endangered.rectify(2.0)
    assert (move.request_id, move.source, move.dispatch.instance) == ("r0", "slow", "fast")
    assert move.generated == 20
    # The target has the prompt and what was generated to compute, then 280 tokens to go.
    assert move.dispatch.prediction.prefill_s == pytest.approx(PREFILL * 120, rel=0.05)
    assert move.dispatch.prediction.decode_s == pytest.approx(FAST * 279, rel=0.1)
    assert move.gain > 0.9


def test_looking_for_moves_changes_nothing(endangered):
    assert endangered.rectify(2.0) == endangered.rectify(2.0)
    assert endangered.instances["slow"].in_flight == 1


def test_a_moved_request_is_booked_at_its_target_and_ends_there(endangered):
    (move,) = endangered.rectify(2.0)
    endangered.on_migrated(move, 2.1)
    assert endangered.instances["slow"].in_flight == 0
    assert endangered.instances["fast"].in_flight == 1
    endangered.on_first_token("r0", 2.2)
    endangered.on_progress("r0", 150, 4.0)
    assert endangered.rectify(4.0) == []
    endangered.on_finished("r0", 300, 5.2)
    assert endangered.instances["fast"].in_flight == 0


def test_a_moved_request_teaches_its_target_only_the_tokens_made_there(endangered):
    before = endangered.instances["fast"].speed.decode_step_s(1)
    (move,) = endangered.rectify(2.0)
    endangered.on_migrated(move, 2.1)
    endangered.on_first_token("r0", 2.2)  # brings token 21
    endangered.on_finished("r0", 300, 2.2 + 279 * FAST)
    assert endangered.instances["fast"].speed.decode_step_s(1) == pytest.approx(before, rel=0.02)


def test_a_move_to_an_instance_that_has_gone_loses_no_request(endangered):
    (move,) = endangered.rectify(2.0)
    endangered.remove_instance("fast")
    endangered.on_migrated(move, 2.1)
    assert endangered.instances["slow"].in_flight == 0
    endangered.on_first_token("r0", 2.2)
    endangered.on_progress("r0", 30, 2.3)
    endangered.on_failed("r0", 2.5)
    again = request(0, e2el_ms=60_000)
    assert dispatch(endangered, again, 3.0) == "slow"


def test_what_is_in_time_stays():
    router = make("goodput", lengths=300)
    start(router, RequestInfo("r0", 100, 0.0, SLO(e2el_ms=60_000)), "slow", lengths=narrow(300))
    router.on_progress("r0", 20, 2.0)
    assert router.rectify(2.0) == []


def test_what_no_instance_can_save_stays():
    router = make("goodput", lengths=300)
    start(router, RequestInfo("r0", 100, 0.0, SLO(e2el_ms=3_000)), "slow", lengths=narrow(300))
    router.on_progress("r0", 20, 2.0)
    assert router.rectify(2.0) == []


def test_moves_are_limited():
    router = make("goodput", lengths=300, migration={"max_moves": 1, "cooldown_s": 0.0})
    router.add_instance("faster", 8)
    teach(router, "faster", FAST / 4)
    router.set_healthy("faster", False)
    start(router, RequestInfo("r0", 100, 0.0, SLO(e2el_ms=5_000)), "slow", lengths=narrow(300))
    router.on_progress("r0", 20, 1.5)
    (move,) = router.rectify(1.5)
    router.on_migrated(move, 1.5)
    router.on_first_token("r0", 1.6)
    router.set_healthy("faster", True)
    # Still at token 21 after three seconds: endangered again, and `faster` could save it.
    assert router.rectify(4.0) == []


def test_a_move_must_not_ruin_others():
    """The target runs a request that a long prefill would make late."""
    router = make("goodput", lengths=300)
    tight = RequestInfo("tight", 100, 0.0, SLO(e2el_ms=4_000))
    start(router, tight, "fast", lengths=narrow(300))
    info = RequestInfo("r0", 20_000, 0.0, SLO(e2el_ms=10_000))
    start(router, info, "slow", lengths=narrow(300))
    router.on_progress("tight", 100, 1.1)
    router.on_progress("r0", 5, 1.1)
    assert router.rectify(1.2) == []


def test_llumnix_moves_from_the_busiest_to_the_idlest():
    router = make("llumnix", limit=4)
    for i in range(4):
        start(router, request(i), "slow")
    (move,) = router.rectify(1.5)
    assert (move.request_id, move.source, move.dispatch.instance) == ("r3", "slow", "fast")
    router.on_migrated(move, 1.5)
    assert [router.instances[n].in_flight for n in ("fast", "slow")] == [1, 3]


def test_a_prompt_in_the_prefix_cache_is_predicted_to_be_faster():
    router = make("round_robin")
    blocks = token_blocks(list(range(1600)), "m")
    first = RequestInfo("a", 1600, 0.0, blocks=blocks)
    name = dispatch(router, first)
    router.on_first_token("a", 0.2)
    router.on_finished("a", 10, 0.5)
    other = next(n for n in router.instances if n != name)
    again = RequestInfo("b", 1600, 1.0, blocks=blocks, excluded=frozenset({other}))
    hit = router.route(again, 1.0).prediction
    assert hit.hit_tokens == 1600 - 16  # the last token is always computed, and with it its block
    miss = router.route(
        RequestInfo("c", 1600, 1.0, blocks=blocks, excluded=frozenset({name})), 1.0
    ).prediction
    assert miss.hit_tokens == 0
    assert miss.prefill_s == pytest.approx(1600 * PREFILL, rel=0.15)
    assert hit.prefill_s == pytest.approx(16 * PREFILL, rel=0.15)


def test_kv_events_alone_say_what_an_instance_that_publishes_them_holds():
    router = make("round_robin")
    state = router.add_instance("fast", 8, kv_events=True)
    router.set_healthy("slow", False)
    blocks = token_blocks(list(range(320)), "m")
    info = RequestInfo("a", 320, 0.0, blocks=blocks)
    dispatch(router, info)
    assert router.caches.hits(blocks, 1000)[state.slot] == 0
    router.caches.stored(state.slot, None, blocks.hashes)
    assert router.caches.hits(blocks, 1000)[state.slot] == 320
    router.caches.removed(state.slot, blocks.hashes[10:])
    assert router.caches.hits(blocks, 1000)[state.slot] == 160


def test_an_explanation_shows_every_instance_and_changes_nothing():
    router = make("round_robin")
    info = RequestInfo("a", 100, 0.0, SLO(e2el_ms=5_000))
    before = router.explain(info, 0.0, narrow(100))
    assert router.explain(info, 0.0, narrow(100)) == before
    assert before.decision == router.route(info, 0.0, narrow(100))
    found = {a.instance: a for a in before.alternatives}
    assert set(found) == {"fast", "slow"}
    assert found["fast"].chance > 0.95
    assert found["slow"].chance < 0.05  # 10 s there
    assert found["slow"].margin_s == pytest.approx(5 - SLOW * 100, abs=0.3)
    assert found["fast"].margin_s == pytest.approx(5 - FAST * 100, abs=0.1)


def test_a_rejection_says_how_much_time_is_missing():
    router = make("just_enough")
    decision = router.route(RequestInfo("a", 100, 0.0, SLO(e2el_ms=500)), 0.0)
    assert isinstance(decision, Reject)
    assert "the soonest, fast" in decision.message
    assert "0.50 s are left" in decision.message


def test_progress_of_many_requests_at_once():
    router = make("goodput")
    for i in range(3):
        start(router, request(i), "fast")
    router.on_progress_many(["r0", "gone", "r2"], np.array([5, 9, 7]), 1.0)
    tokens = [router.pool.booking(handle).tokens for _, handle in router.open_on("fast")]
    assert tokens == [5, 1, 7]


@pytest.mark.parametrize("policy", ["fastest", "least_request", "weighted_least_request", "random"])
def test_rejecting_variants_choose_among_the_feasible_only(policy):
    router = make(f"{policy}_reject")
    for i in range(4):
        assert dispatch(router, request(i, e2el_ms=5_000)) == "fast"
    assert isinstance(router.route(request(9, e2el_ms=500), 0.0), Reject)


def test_global_sends_a_request_that_only_has_a_tpot_slo_off_when_it_has_waited_enough():
    """Whatever was weighed for the request before it, and on other instances, says nothing of this one."""
    router = make("global", limit=8)
    waiting = RequestInfo("r1", 20_000, 0.0, SLO(tpot_ms=15))
    for i in range(8):
        dispatch(router, request(i + 10, e2el_ms=1_300))
    router.set_healthy("slow", False)
    assert isinstance(router.route(waiting, 0.1), Hold)
    router.set_healthy("slow", True)
    router.route(request(2, e2el_ms=60_000, now_s=10.1), 10.1)
    router.set_healthy("slow", False)
    assert isinstance(router.route(waiting, 10.2), Dispatch)
