# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A simulated pool behind the real router: conservation, closed forms, determinism, failures and moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from vllm_goodput.bench import TraceRow, agentic_mix, trace_duration_s
from vllm_goodput.bench.measure import summarise
from vllm_goodput.bench.record import Record
from vllm_goodput.config import PredictorConfig, RouterConfig
from vllm_goodput.emulation import StepWork, load_profile
from vllm_goodput.errors import ConfigError
from vllm_goodput.predictor.factory import make_predictor
from vllm_goodput.router import Dispatch, Hold, Reject, RequestInfo, Router
from vllm_goodput.router.types import Decision, Migration, Prediction
from vllm_goodput.sim import Change, Overheads, SimInstance, SimOptions, Simulation, simulate
from vllm_goodput.sim.bound import upper_bound
from vllm_goodput.sim.prompts import PromptKeys
from vllm_goodput.slo import SLO

H100, T4 = load_profile("h100"), load_profile("t4")
NO_OVERHEADS = Overheads(request_s=0.0, prompt_token_s=0.0, token_s=0.0)


def pool(**changes):
    return [
        SimInstance(name="fast", profile=H100, max_num_seqs=8, **changes),
        SimInstance(name="slow", profile=T4, max_num_seqs=8, **changes),
    ]


def make_router(policy="goodput", **settings):
    return Router(RouterConfig(policy=policy, use_max_tokens=False, **settings))


def trace(seed=0, rate=10.0, duration_s=20.0, slo_scale=6.0):
    return agentic_mix(
        seed, duration_s, rate, slo_scale=slo_scale, max_prompt_len=2000, max_output_len=100
    )


class Scripted(Router):
    """A real router whose decisions, and moves, are given."""

    def __init__(
        self, decisions: list[str | float | Reject], moves: dict[float, str] | None = None
    ):
        super().__init__(RouterConfig(policy="round_robin", use_max_tokens=False))
        self.script = list(decisions)
        self.moves = dict(moves or {})
        self.asked_s: list[float] = []
        self.told: list[tuple[str, float]] = []

    def route(self, info: RequestInfo, now_s: float, lengths=None) -> Decision:
        self.asked_s.append(now_s)
        step = self.script.pop(0)
        if isinstance(step, Reject):
            return step
        if isinstance(step, float):
            return Hold(now_s + step)
        return Dispatch(step, Prediction(0.1, 0.2, 0.3, 0.01, 10.0), lengths)

    def rectify(self, now_s: float) -> list[Migration]:
        due = [at_s for at_s in self.moves if at_s <= now_s]
        found = []
        for at_s in due:
            target = self.moves.pop(at_s)
            for request_id, opened in self._open.items():
                dispatch = Dispatch(target, Prediction(0, 0, 0, 0.01, 10.0), opened.lengths)
                found.append(Migration(request_id, opened.instance, dispatch, 0, 0.5))
        return found

    def on_migrated(self, migration: Migration, now_s: float) -> None:
        self.told.append((f"moved with {migration.generated}", now_s))
        super().on_migrated(migration, now_s)

    def on_finished(self, request_id, output_len, now_s, timed=True):
        self.told.append(("finished", now_s))
        super().on_finished(request_id, output_len, now_s, timed)

    def on_failed(self, request_id, now_s):
        self.told.append(("failed", now_s))
        super().on_failed(request_id, now_s)


def row(arrival_s=0.0, prompt_len=100, output_len=11, **more):
    return TraceRow(arrival_s=arrival_s, prompt_len=prompt_len, output_len=output_len, **more)


def alone_s(profile, prompt_len, output_len, scale=1.0):
    prefill_s = profile.step_s(StepWork(prompt_len, 1))
    return scale * (prefill_s + (output_len - 1) * profile.step_s(StepWork(0, 1)))


@pytest.mark.parametrize("policy", ["round_robin", "goodput", "just_enough"])
def test_every_request_ends_exactly_once(policy):
    rows = trace(rate=15.0, slo_scale=3.0)
    router = make_router(policy)
    counts = Counts()
    simulation = Simulation(rows, pool(), router, observer=counts)
    records = simulation.run()
    assert [r.index for r in records] == list(range(len(rows)))
    assert (counts.sent_count, len(counts.records)) == (len(rows), len(rows))
    summary = summarise(records, trace_duration_s(rows))
    rejected = sum(summary["rejected"].values())
    assert summary["completed"] + rejected == len(rows)
    assert sum(s["finished"] for s in simulation.stats().values()) == summary["completed"]
    assert all(state.in_flight == 0 for state in router.instances.values())


@dataclass
class Counts:
    sent_count: int = 0
    records: list[Record] = field(default_factory=list)

    def sent(self):
        self.sent_count += 1

    def done(self, record):
        self.records.append(record)


def test_equal_arguments_give_equal_records():
    first, second = (simulate(trace(3), pool(), make_router()) for _ in range(2))
    assert first == second
    assert simulate(trace(4), pool(), make_router()) != first


def test_one_request_alone_takes_its_isolated_latency():
    overheads = Overheads(request_s=0.003, prompt_token_s=1e-5, token_s=0.002)
    instances = [SimInstance(name="i", profile=T4, scale=2.0)]
    (record,) = simulate(
        [row(2.5)], instances, Scripted(["i"]), options=SimOptions(overheads=overheads)
    )
    engine_s = alone_s(T4, 100, 11, 2.0)
    assert record.completed
    assert record.e2el_s == pytest.approx(engine_s + 0.003 + 100 * 1e-5 + 0.002)
    assert record.ttft_s == pytest.approx(alone_s(T4, 100, 1, 2.0) + 0.006)
    assert record.tpot_s == pytest.approx(2.0 * T4.step_s(StepWork(0, 1)))
    assert record.finished_s == pytest.approx(2.5 + record.e2el_s)
    assert (record.instance, record.predicted_e2el_ms) == ("i", pytest.approx(600.0))


def test_probes_find_the_speed_of_the_profile():
    router = make_router()
    simulate([row()], pool(), router, options=SimOptions(overheads=NO_OVERHEADS))
    fast, slow = (router.instances[name].speed for name in ("fast", "slow"))
    assert slow.decode_step_s(4) == pytest.approx(T4.step_s(StepWork(0, 4)), rel=0.1)
    assert fast.decode_step_s(1) == pytest.approx(H100.step_s(StepWork(0, 1)), rel=0.1)


def test_without_probes_nothing_is_known_at_first():
    router = Scripted(["fast"])
    simulate([row()], pool(), router, options=SimOptions(probe=False))
    assert router.instances["fast"].speed.known  # from the request itself
    assert not router.instances["slow"].speed.known


def test_held_requests_are_asked_again_when_the_router_said():
    router = Scripted([0.2, 0.3, "fast"])
    (record,) = simulate([row(1.0)], pool(), router, options=SimOptions(overheads=NO_OVERHEADS))
    assert router.asked_s == pytest.approx([1.0, 1.2, 1.5])
    assert record.e2el_s == pytest.approx(0.5 + alone_s(H100, 100, 11))


def test_more_held_requests_than_allowed_are_rejected():
    router = make_router(max_held=0)
    router.route = lambda info, now_s, lengths=None: Hold(now_s + 1.0)
    (record,) = simulate([row()], pool(), router)
    assert (record.reject_reason, record.status, record.outcome) == ("saturated", 429, "rejected")


def test_a_rejection_is_recorded_with_its_reason():
    (record,) = simulate([row(1.0)], pool(), Scripted([Reject("infeasible", "too late")]))
    assert (record.reject_reason, record.status, record.e2el_s) == ("infeasible", 422, None)
    assert (record.finished_s, record.instance) == (1.0, None)


def test_an_instance_that_slows_down():
    change = Change(at_s=0.0, instance="fast", slowdown=3.0)
    options = SimOptions(overheads=NO_OVERHEADS, changes=(change,))
    (record,) = simulate([row(1.0)], pool(), Scripted(["fast"]), options=options)
    assert record.e2el_s == pytest.approx(alone_s(H100, 100, 11, 3.0))


def test_an_instance_that_dies_loses_begun_answers_and_others_are_tried_elsewhere():
    # One sequence at a time: the first request is being answered, the second waits.
    instances = [replace(i, max_num_seqs=1) for i in pool()]
    rows = [row(0.0, output_len=200), row(0.1)]
    router = Scripted(["slow", "slow", "fast"])
    options = SimOptions(
        overheads=NO_OVERHEADS, changes=(Change(at_s=1.0, instance="slow", alive=False),)
    )
    first, second = simulate(rows, instances, router, options=options)
    assert (first.outcome, first.status, first.instance) == ("failed", 200, "slow")
    assert first.ttft_s == pytest.approx(alone_s(T4, 100, 1))
    assert (second.completed, second.instance) == (True, "fast")
    assert second.e2el_s == pytest.approx(0.9 + alone_s(H100, 100, 11))
    assert not router.instances["slow"].healthy
    assert [what for what, _ in router.told] == ["failed", "failed", "finished"]


def test_an_instance_that_comes_back_takes_requests():
    changes = (
        Change(at_s=1.0, instance="fast", alive=False),
        Change(at_s=2.0, instance="fast", alive=True),
    )
    rows = [row(0.5, 100, 2), row(1.5), row(2.5)]
    instances = pool()[:1]
    records = simulate(rows, instances, make_router(), options=SimOptions(changes=changes))
    assert [r.outcome for r in records] == ["met", "rejected", "met"]
    assert records[1].reject_reason == "no-endpoints"


def test_a_moved_request_is_computed_again_and_goes_on():
    # On the slow one: prefill, then 1 token per step. It moves at the first look after 1 s, which comes at 1.25 s.
    router = Scripted(["slow"], {1.1: "fast"})
    options = SimOptions(overheads=NO_OVERHEADS, rectify_interval_s=0.25, migration_delay_s=0.02)
    (record,) = simulate([row(0.0, 100, 100)], pool(), router, options=options)
    step_s = T4.step_s(StepWork(0, 1))
    first_s = T4.step_s(StepWork(100, 1))
    generated = 1 + int((1.25 - first_s) / step_s)
    rest_s = alone_s(H100, 100 + generated, 100 - generated)
    assert router.told[0] == (f"moved with {generated}", pytest.approx(1.25))
    assert record.e2el_s == pytest.approx(1.25 + 0.02 + rest_s)
    assert record.ttft_s == pytest.approx(first_s)
    assert (record.migrations, record.output_tokens, record.completed) == (1, 100, True)


def test_a_request_that_moves_back_finds_its_blocks_there():
    router = Scripted(["slow"], {0.5: "fast", 0.75: "slow"})
    options = SimOptions(overheads=NO_OVERHEADS, rectify_interval_s=0.25)
    simulation = Simulation([row(0.0, 100, 100)], pool(), router, options)
    (record,) = simulation.run()
    assert record.migrations == 2
    assert simulation.stats()["slow"]["cached_tokens"] == 96  # six blocks of 16


def test_clients_that_give_up():
    options = SimOptions(timeout_s=1.0)
    rows = [row(0.0, 100, 200), row(0.1, 100, 2)]
    router = Scripted(["slow", "slow"])
    first, second = simulate(rows, pool(), router, options=options)
    assert (first.outcome, first.e2el_s, first.finished_s) == ("failed", None, 1.0)
    assert "within 1 s" in first.error
    assert second.completed
    assert all(state.in_flight == 0 for state in router.instances.values())


def test_requests_that_no_cache_can_hold_fail():
    router = Scripted(["fast"])
    (record,) = simulate([row(0.0, 100, 11)], pool(kv_tokens=96), router)
    assert (record.outcome, record.status) == ("failed", 400)


def test_stopping_early_ends_what_is_open():
    rows = trace()
    counts = Counts()
    records = simulate(
        rows, pool(), make_router(), observer=counts, stop=lambda: len(counts.records) >= 20
    )
    assert 20 <= len(records) < len(rows)
    assert {r.error for r in records if r.outcome == "failed"} <= {"interrupted"}
    assert sum(r.error == "interrupted" for r in records) == counts.sent_count - 20


def test_sessions_find_their_prompts_where_they_were_before():
    rows = [
        row(0.0, 320, 2, session="s"),
        row(5.0, 400, 2, session="s"),
        row(10.0, 400, 2, session="t"),
    ]
    router = Scripted(["fast"] * 3)
    simulation = Simulation(rows, pool(), router)
    simulation.run()
    assert simulation.stats()["fast"]["cached_tokens"] == 320
    apart = Simulation(rows, pool(), Scripted(["fast"] * 3), SimOptions(share_session_prefix=False))
    apart.run()
    assert apart.stats()["fast"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("first", "second", "cached"),
    [
        ({"prefix_ids": (7, 8)}, {"prefix_ids": (7, 9)}, 512),
        ({"prefix_ids": (7, 8)}, {"prefix_ids": (8, 7)}, 0),
        ({"prompt": [*range(50)] * 20}, {"prompt": [*range(50)] * 10 + [9] * 500}, 496),
        ({"prompt": "ab" * 2000}, {"prompt": "ab" * 1000 + "c" * 2000}, 496),
        ({"messages": (("user", "x" * 4000),)}, {"messages": (("tool", "x" * 4000),)}, 0),
        ({}, {}, 0),
    ],
)
def test_prompts_that_begin_alike(first, second, cached):
    rows = [row(0.0, 1000, 2, **first), row(5.0, 1000, 2, **second)]
    simulation = Simulation(rows, pool(), Scripted(["fast"] * 2))
    simulation.run()
    assert simulation.stats()["fast"]["cached_tokens"] == cached


def test_token_counts_reach_the_router_at_intervals_or_before_each_decision():
    class Counting(Scripted):
        def __init__(self):
            super().__init__(["slow", "fast"])
            self.counts = []

        def on_progress_many(self, request_ids, tokens, now_s):
            if tokens:
                self.counts.append((now_s, *tokens))
            super().on_progress_many(request_ids, tokens, now_s)

    rows = [row(0.0, 100, 100), row(1.1, 100, 2)]
    step_s, first_s = T4.step_s(StepWork(0, 1)), T4.step_s(StepWork(100, 1))

    def expected(at_s):
        return 1 + int((at_s - first_s) / step_s)

    router = Counting()
    simulate(
        rows, pool(), router, options=SimOptions(overheads=NO_OVERHEADS, progress_interval_s=0.0)
    )
    assert router.counts == [(pytest.approx(1.1), expected(1.1))]
    router = Counting()
    simulate(
        rows, pool(), router, options=SimOptions(overheads=NO_OVERHEADS, progress_interval_s=0.5)
    )
    assert router.counts[:2] == [(0.5, expected(0.5)), (1.0, expected(1.0))]


def test_an_idle_instance_is_measured_again_after_rejections():
    class Suspicious(Scripted):
        """Knows a far too slow instance."""

        def add_instance(self, *args, **kwargs):
            state = super().add_instance(*args, **kwargs)
            self.before = state.speed
            return state

    reject = Reject("infeasible", "x")
    rows = [row(1.0), row(40.0), row(45.0)]
    router = Scripted([reject, reject, reject])
    simulation = Simulation(rows, pool(), router)
    speeds = []
    original = router.route

    def route(info, now_s, lengths=None):
        speeds.append(router.instances["fast"].speed)
        return original(info, now_s, lengths)

    router.route = route
    simulation.run()
    assert speeds[0] is not speeds[1]  # 30 s after the first measurement, with a rejection since
    assert speeds[1] is speeds[2]


def test_slos_are_judged_as_in_a_replay():
    engine_ms = 1e3 * alone_s(H100, 100, 11)
    rows = [
        row(0.0, slo=SLO(e2el_ms=engine_ms * 1.1)),
        row(5.0, slo=SLO(e2el_ms=engine_ms * 0.9)),
        row(10.0, slo=SLO(ttft_ms=1.0)),
    ]
    options = SimOptions(overheads=NO_OVERHEADS)
    records = simulate(rows, pool(), Scripted(["fast"] * 3), options=options)
    assert [r.missed for r in records] == [(), ("e2el",), ("ttft",)]


def test_names_must_be_unique_and_known():
    with pytest.raises(ConfigError, match="'fast' is used twice"):
        simulate([row()], [pool()[0], pool()[0]], make_router())
    with pytest.raises(ConfigError, match="at least one"):
        simulate([row()], [], make_router())
    options = SimOptions(changes=(Change(at_s=0.0, instance="nobody"),))
    with pytest.raises(ConfigError, match="no instance 'nobody'"):
        simulate([row()], pool(), make_router(), options=options)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scale", 0.0),
        ("scale", float("nan")),
        ("max_num_seqs", 0),
        ("block_size", 0),
        ("max_num_batched_tokens", 7),
        ("kv_tokens", 15),
    ],
)
def test_specs_are_checked(field, value):
    good = {"name": "i", "profile": H100, "max_num_seqs": 8}
    with pytest.raises(ConfigError, match=f"instance i: {field} must be .* got {value!r}"):
        SimInstance(**good | {field: value})


def test_the_router_knows_which_prompts_begin_alike():
    class Remembering(Scripted):
        def route(self, info, now_s, lengths=None):
            hits = self.caches.hits(info.blocks, info.prompt_len)
            self.hits = [] if hits is None else hits.tolist()
            return super().route(info, now_s, lengths)

    cases = [
        ({"session": "s"}, {"session": "s"}, 384.0),
        ({"session": "s"}, {"session": "t"}, 0.0),
        ({"prefix_ids": (7,)}, {"prefix_ids": (7,)}, 384.0),
        ({"prompt": [5] * 400}, {"prompt": [5] * 400}, 384.0),
        ({}, {}, 0.0),
    ]
    for first, second, hits in cases:
        router = Remembering(["slow", "fast"])
        simulate([row(0.0, 400, 2, **first), row(5.0, 400, 2, **second)], pool(), router)
        assert router.hits == [0.0, hits]  # the first was sent to the slow one


def test_jitter_is_by_seed():
    def run(seed, jitter_s=0.01):
        overheads = Overheads(jitter_s=jitter_s)
        options = SimOptions(overheads=overheads, seed=seed)
        return simulate(trace(), pool(), make_router(), options=options)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1, 0.0) == run(2, 0.0)
    (record,) = simulate(
        [row()],
        pool()[:1],
        Scripted(["fast"]),
        options=SimOptions(overheads=replace(NO_OVERHEADS, jitter_s=0.5)),
    )
    assert record.ttft_s > alone_s(H100, 100, 1)


def test_overheads_are_checked():
    with pytest.raises(ConfigError, match="overheads: jitter_s must be a number >= 0, got -1"):
        Overheads(jitter_s=-1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("migration", [False, True])
def test_no_simulation_exceeds_the_proven_bound(seed, migration):
    rows = trace(seed, rate=25.0, duration_s=10.0, slo_scale=1.5)
    config = RouterConfig(policy="goodput", predictor=PredictorConfig(kind="max_tokens"))
    router = Router(config, make_predictor(config))
    options = SimOptions(overheads=NO_OVERHEADS, migration=migration)
    records = simulate(rows, pool(), router, options=options)
    met = sum(record.outcome == "met" for record in records)
    bound = upper_bound(rows, pool(), migration=migration)
    assert len(rows) * 0.2 < met <= bound.met < len(rows)


@pytest.mark.parametrize("block_size", [16, 100, 512, 700])
def test_hash_ids_say_which_blocks_are_alike_whatever_their_size(block_size):
    rows = [row(0.0, 2000, 1, prefix_ids=ids) for ids in ((1, 2, 3), (1, 2, 4), (2, 2, 3))]
    keys = PromptKeys(rows)
    first, second, third = (list(keys.of(i, block_size)) for i in range(3))
    alike = 2 * 512 // block_size
    assert len(first) == 2000 // block_size
    assert first[:alike] == second[:alike]
    assert not set(first[alike:]) & set(second[alike:])
    assert not set(first) & set(third)
    assert len(set(first)) == len(first)
