# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The router: decisions of every policy on hand-made pools, and its bookkeeping."""

from __future__ import annotations

import random

import pytest

from vllm_goodput.config import RouterConfig
from vllm_goodput.router import Dispatch, Hold, Reject, RequestInfo, Router
from vllm_goodput.router.estimator import Sample
from vllm_goodput.router.policies import POLICIES
from vllm_goodput.slo import SLO

FAST, SLOW = 0.010, 0.100  # seconds per output token
PREFILL = 1e-4  # seconds per prompt token


def teach(router, name, token_s, overhead_s=0.01):
    """Give an instance exact, constant speed: no batch effect."""
    speed = router.instances[name].speed
    for i in range(40):
        speed.add(Sample(overhead_s + PREFILL * (i + 1) * 10, 1, (i + 1) * 10, 0, 0))
        speed.add(Sample(token_s * 100, 0, 0, 100, 100 * (1 + i % 8)))


def expecting(output_len, policy="goodput", **settings):
    """A router that has seen many outputs of one length."""
    router = Router(RouterConfig(policy=policy, **settings))
    for _ in range(1000):
        router.predictor.observe(request(), output_len)
    return router


def make(policy, lengths=100, limit=8, **settings):
    router = expecting(lengths, policy=policy, **settings)
    for name, token_s in (("fast", FAST), ("slow", SLOW)):
        router.add_instance(name, limit)
        teach(router, name, token_s)
    return router


def request(i=0, e2el_ms=None, now_s=0.0, **fields):
    return RequestInfo(
        f"r{i}",
        prompt_len=100,
        arrival_s=now_s,
        slo=fields.pop("slo", SLO(e2el_ms=e2el_ms)),
        **fields,
    )


def dispatch(router, info, now_s=0.0):
    decision = router.route(info, now_s)
    if router.policy.name == "global" and isinstance(decision, Hold):  # its horizon
        now_s = decision.retry_at_s
        decision = router.route(info, now_s)
    assert isinstance(decision, Dispatch), decision
    router.on_dispatched(info, decision, now_s)
    return decision.instance


def test_round_robin_takes_turns():
    router = make("round_robin")
    assert [dispatch(router, request(i)) for i in range(4)] == ["fast", "slow", "fast", "slow"]


def test_least_request_counts_requests_in_flight():
    router = make("least_request")
    assert [dispatch(router, request(i)) for i in range(3)] == ["fast", "slow", "fast"]
    router.on_finished("r0", 5, 1.0)
    router.on_finished("r2", 5, 1.0)
    assert dispatch(router, request(9), 1.0) == "fast"


def test_weighted_least_request_fills_by_speed():
    router = make("weighted_least_request", limit=100)
    chosen = [dispatch(router, request(i)) for i in range(22)]
    assert chosen.count("fast") == pytest.approx(20, abs=1)


def test_just_enough_takes_the_weakest_that_fits_and_rejects_what_fits_nowhere():
    router = make("just_enough")
    assert dispatch(router, request(0, e2el_ms=30_000)) == "slow"
    assert dispatch(router, request(1, e2el_ms=5_000)) == "fast"
    decision = router.route(request(2, e2el_ms=500), 0.0)
    assert isinstance(decision, Reject)
    assert decision.reason == "infeasible"


def test_goodput_prefers_room_among_the_feasible():
    router = make("goodput")
    first = dispatch(router, request(0, e2el_ms=60_000))
    second = dispatch(router, request(1, e2el_ms=60_000))
    assert {first, second} == {"fast", "slow"}


def test_goodput_sends_an_urgent_request_to_the_fast_one_only():
    router = make("goodput")
    assert [dispatch(router, request(i, e2el_ms=4_000)) for i in range(3)] == ["fast"] * 3


def test_goodput_rejects_what_even_an_idle_pool_cannot_do():
    decision = make("goodput").route(request(0, e2el_ms=300), 0.0)
    assert isinstance(decision, Reject)
    assert decision.reason == "infeasible"


def test_goodput_holds_what_only_load_prevents_and_rejects_it_when_too_late():
    router = make("goodput", limit=1)
    dispatch(router, request(0, e2el_ms=1_900))
    waiting = request(1, e2el_ms=1_900)
    decision = router.route(waiting, 0.0)
    assert isinstance(decision, Hold)
    assert 0 < decision.retry_at_s <= 0.5
    assert isinstance(router.route(waiting, 1.7), Reject)
    router.on_finished("r0", 100, 0.8)
    assert dispatch(router, waiting, 0.8) == "fast"


def test_requests_beyond_the_limit_wait_their_turn_in_the_prediction():
    """Two sequences of 100 tokens x 10 ms at a time: the (2k + 1)-th request starts after k seconds."""
    router = make("least_request", limit=2)
    router.set_healthy("slow", False)
    waits = []
    for i in range(7):
        decision = router.route(request(i), 0.0)
        waits.append(decision.prediction.queue_s)
        router.on_dispatched(request(i), decision, 0.0)
    for i, wait_s in enumerate(waits):
        assert wait_s == pytest.approx(i // 2 * 1.0, abs=0.25 * (1 + i // 2))


def test_goodput_impact_check_protects_accepted_requests():
    """A second request would fit by itself but slow the first past its deadline."""
    router = expecting(100)
    router.add_instance("one", 8)
    speed = router.instances["one"].speed
    for i in range(40):  # d(n) = 10 ms x n: every request slows the others
        sequences = 1 + i % 4
        speed.add(Sample(0.01 + PREFILL * 100, 1, 100, 0, 0))
        speed.add(Sample(0.01 * sequences * 100, 0, 0, 100, 100 * sequences))
    dispatch(router, request(0, e2el_ms=1_500))
    assert isinstance(router.route(request(1, e2el_ms=60_000), 0.1), Hold)
    router.on_finished("r0", 100, 1.0)
    assert dispatch(router, request(1, e2el_ms=60_000), 1.0) == "one"


def test_goodput_impact_check_protects_tpot():
    router = expecting(100)
    router.add_instance("one", 8)
    speed = router.instances["one"].speed
    for i in range(40):
        sequences = 1 + i % 4
        speed.add(Sample(0.01 + PREFILL * 100, 1, 100, 0, 0))
        speed.add(Sample(0.01 * sequences * 100, 0, 0, 100, 100 * sequences))
    dispatch(router, request(0, slo=SLO(tpot_ms=15)))
    assert isinstance(router.route(request(1, slo=SLO(e2el_ms=60_000)), 0.0), Hold)


def test_a_request_with_only_a_tpot_slo_is_not_held_for_ever():
    router = make("goodput", limit=8)
    router.set_healthy("slow", False)
    dispatch(router, request(0, slo=SLO(e2el_ms=1_200)))
    info = RequestInfo("r1", prompt_len=20_000, arrival_s=0.0, slo=SLO(tpot_ms=50))
    assert isinstance(router.route(info, 0.0), Hold)
    assert isinstance(router.route(info, 0.1), Hold)
    assert isinstance(router.route(info, 10.1), Dispatch)


def test_ttft_bounds_queue_and_prefill():
    router = make("goodput")
    info = RequestInfo("r", prompt_len=50_000, arrival_s=0.0, slo=SLO(ttft_ms=1_000))
    assert isinstance(router.route(info, 0.0), Reject)
    assert isinstance(router.route(request(1, slo=SLO(ttft_ms=1_000)), 0.0), Dispatch)


def test_tpot_excludes_the_slow_instance():
    router = make("goodput")
    assert [dispatch(router, request(i, slo=SLO(tpot_ms=50))) for i in range(3)] == ["fast"] * 3


def test_requests_without_slo_are_never_rejected_or_held():
    router = make("goodput", limit=1)
    for i in range(20):
        dispatch(router, request(i))


@pytest.mark.parametrize("policy", sorted(POLICIES))
class TestEveryPolicy:
    def test_no_healthy_instance_is_no_endpoints(self, policy):
        router = make(policy)
        for name in ("fast", "slow"):
            router.set_healthy(name, False)
        decision = router.route(request(e2el_ms=9_000), 0.0)
        assert isinstance(decision, Reject)
        assert decision.reason == "no-endpoints"

    def test_unhealthy_and_excluded_instances_get_nothing(self, policy):
        router = make(policy)
        router.set_healthy("fast", False)
        assert dispatch(router, request(0, e2el_ms=60_000)) == "slow"
        router.set_healthy("fast", True)
        excluded = request(1, e2el_ms=60_000, excluded=frozenset({"slow"}))
        assert dispatch(router, excluded) == "fast"

    def test_a_model_goes_only_where_it_is_served(self, policy):
        router = make(policy)
        router.add_instance("fast", 8, {"a"})
        router.add_instance("slow", 8, {"b"})
        assert dispatch(router, request(0, e2el_ms=60_000, model="b")) == "slow"
        assert isinstance(router.route(request(1, model="c"), 0.0), Reject)

    def test_an_instance_never_measured_is_tried(self, policy):
        router = make(policy)
        router.add_instance("new", 8)
        chosen = {dispatch(router, request(i, e2el_ms=60_000)) for i in range(6)}
        assert "new" in chosen

    def test_same_calls_same_decisions(self, policy):
        assert replay(policy) == replay(policy)

    def test_every_end_releases_its_booking(self, policy):
        router = make(policy, limit=1000)
        rng = random.Random(1)
        opened = []
        for i in range(300):
            info = request(i, e2el_ms=600_000, streaming=rng.random() < 0.5)
            dispatch(router, info, i * 0.1)
            opened.append(info)
            if rng.random() < 0.9:
                done = opened.pop(rng.randrange(len(opened)))
                end(router, rng, done, i * 0.1 + 0.05)
        for info in opened:
            end(router, rng, info, 40.0)
        assert all(not s.in_flight for s in router.instances.values())
        assert not router._open


def end(router, rng, info, now_s):
    if info.streaming:
        router.on_first_token(info.request_id, now_s)
        router.on_progress(info.request_id, 3, now_s)
    if rng.random() < 0.3:
        router.on_failed(info.request_id, now_s)
    else:
        router.on_finished(info.request_id, rng.randint(1, 50), now_s)


def replay(policy):
    """A scripted day; returns every decision."""
    router, rng, log, opened = make(policy), random.Random(7), [], []
    for i in range(200):
        now_s = i * 0.2
        info = request(i, e2el_ms=rng.choice([500, 5_000, 50_000]), now_s=now_s)
        decision = router.route(info, now_s)
        log.append(decision)
        if isinstance(decision, Dispatch):
            router.on_dispatched(info, decision, now_s)
            opened.append(info)
        if len(opened) > 5:
            end(router, rng, opened.pop(0), now_s + 0.1)
    return log


def test_timing_that_the_client_held_up_teaches_no_speed():
    router = make("round_robin")
    router.set_healthy("slow", False)
    before = router.instances["fast"].speed.decode_step_s(1)
    dispatch(router, request(0))
    router.on_first_token("r0", 0.1)
    router.on_finished("r0", 50, 500.0, timed=False)
    assert router.instances["fast"].speed.decode_step_s(1) == pytest.approx(before, rel=0.05)


def test_a_request_cannot_be_booked_twice():
    router = make("goodput")
    info = request(0)
    decision = router.route(info, 0.0)
    router.on_dispatched(info, decision, 0.0)
    with pytest.raises(ValueError, match="open already"):
        router.on_dispatched(info, decision, 0.0)


def test_a_removed_instance_may_still_be_reported():
    router = make("round_robin")
    name = dispatch(router, request(0))
    router.remove_instance(name)
    router.on_first_token("r0", 1.0)
    router.on_progress("r0", 5, 1.0)
    router.on_finished("r0", 5, 2.0)
    assert dispatch(router, request(1)) != name


def test_re_added_instance_does_not_inherit_old_bookings():
    router = make("round_robin")
    name = dispatch(router, request(0))
    router.remove_instance(name)
    router.add_instance(name, 8)
    router.on_finished("r0", 5, 2.0)
    assert not router.instances[name].in_flight


def test_predictions_come_true_on_an_ideal_instance():
    """Feed the router responses of an ideal device, then compare its prediction with that device."""
    router = make("round_robin", lengths=50)
    now_s = 0.0
    for i in range(40):
        info = RequestInfo(f"x{i}", prompt_len=100 + 10 * i, arrival_s=now_s)
        decision = router.route(info, now_s)
        router.on_dispatched(info, decision, now_s)
        token_s = FAST if decision.instance == "fast" else SLOW
        first_s = now_s + 0.01 + PREFILL * info.prompt_len
        router.on_first_token(info.request_id, first_s)
        now_s = first_s + token_s * 49
        router.on_finished(info.request_id, 50, now_s)
        now_s += 30.0
    info = RequestInfo("y", prompt_len=500, arrival_s=now_s, task="new")
    for name, token_s in (("fast", FAST), ("slow", SLOW)):
        decision = router.route(request_excluding(info, name), now_s)
        length = decision.prediction.output_len
        truth_s = 0.01 + PREFILL * 500 + token_s * (length - 1)
        assert decision.instance == name
        assert decision.prediction.e2el_s == pytest.approx(truth_s, rel=0.05)


def request_excluding(info, name):
    other = {"fast": "slow", "slow": "fast"}[name]
    return RequestInfo(
        info.request_id,
        info.prompt_len,
        info.arrival_s,
        task=info.task,
        excluded=frozenset({other}),
    )
