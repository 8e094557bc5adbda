# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Pools to simulate, from files; and the studies made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vllm_goodput.bench import TraceRow
from vllm_goodput.config import PredictorConfig, RouterConfig
from vllm_goodput.errors import ConfigError
from vllm_goodput.sim import Change, SimOptions
from vllm_goodput.sim.plan import second_fastest
from vllm_goodput.sim.pool_file import load_pool
from vllm_goodput.sim.study import Study, complete, results

EXAMPLE = Path(__file__).parents[2] / "examples" / "unequal-pool.yaml"
HISTOGRAM = RouterConfig(use_max_tokens=False, predictor=PredictorConfig(kind="histogram"))


@pytest.fixture
def load(tmp_path):
    def _load(text, **settings):
        path = tmp_path / "pool.yaml"
        path.write_text(text)
        return load_pool(str(path), **settings)

    return _load


def test_the_example_deployment():
    pool = load_pool(str(EXAMPLE))
    assert [(i.name, i.profile.device.split()[1], i.scale) for i in pool.instances] == [
        ("h100", "H100", 2.5),
        ("l40s", "L40S", 2.5),
        ("t4", "T4", 2.5),
    ]
    assert {i.max_num_seqs for i in pool.instances} == {16}
    assert {(i.block_size, i.async_scheduling) for i in pool.instances} == {(128, False)}
    assert (pool.engine, pool.router.policy) == ("cpu", "goodput")


def test_engine_flags_of_a_deployment_count(load):
    text = """
model: m
args: {max_num_seqs: 4, block-size: 32, enable-prefix-caching: false, dtype: auto}
instances:
  - name: a
    port: 1
    emulate: h100
    args: {max-num-seqs: 8, num-gpu-blocks-override: 100, no-async-scheduling: true}
  - {name: b, port: 2, emulate: "t4:3", args: {async-scheduling: true}}
gateway: {port: 3}
"""
    a, b = load(text, engine="gpu", kv_tokens=5000).instances
    assert (a.max_num_seqs, a.block_size, a.kv_tokens) == (8, 32, 3200)
    assert (a.prefix_caching, a.async_scheduling) == (False, False)
    assert (b.max_num_seqs, b.kv_tokens, b.async_scheduling, b.scale) == (4, 5000, True, 3.0)


def test_instances_alone(load):
    pool = load("instances: [{name: a, emulate: l40s, kv_tokens: 1600}, {name: b, emulate: a100}]")
    a, b = pool.instances
    assert (pool.engine, a.kv_tokens, a.block_size, a.async_scheduling) == ("gpu", 1600, 16, True)
    assert b.kv_tokens == 262_144


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("instances: []", "instances: Tuple should have at least 1 item"),
        ("instances: [{name: a}]", "instances.0.emulate: Field required"),
        ("instances: [{name: a, emulate: b200}]", "no profile 'b200'"),
        ("instances: [{name: a, emulate: h100, url: x}]", "instances.0.url: unknown key"),
        (
            "instances: [{name: a, emulate: h100}, {name: a, emulate: t4}]",
            "name 'a' is used twice",
        ),
        ("instances: [{name: a, emulate: h100, max_num_seqs: 4096}]", "max_num_batched_tokens"),
        ("[", "not valid YAML"),
        ("model: m\ninstances: [{name: a, port: 1}]", "instances.a: a simulation needs to know"),
        (
            "model: m\ninstances: [{name: a, port: 1, emulate: t4, args: {max-num-seqs: many}}]",
            "args.max-num-seqs: must be a whole number, got 'many'",
        ),
    ],
)
def test_what_is_wrong_is_named(load, text, message):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert message in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load_pool("none.yaml")


def test_the_second_fastest_instance_is_the_reference():
    pool = load_pool(str(EXAMPLE))
    reference = second_fastest(pool.instances)
    l40s = pool.instances[1]
    # Prefill of 100 tokens, then 9 more steps.
    expected = 2.5 * (
        10 * (l40s.profile.base_s + l40s.profile.per_running_seq_s)
        + 100 * l40s.profile.per_prefill_token_s
    )
    assert reference.e2el_s(100, 10) == pytest.approx(expected)
    assert second_fastest(pool.instances[:1]).tpot_s < reference.tpot_s


def study(policies, seeds):
    def trace(seed):
        return [
            TraceRow(arrival_s=float(i * (1 + seed)), prompt_len=100, output_len=5)
            for i in range(4)
        ]

    return Study(load_pool(str(EXAMPLE)).instances, HISTOGRAM, policies, seeds, trace)


def test_results_are_over_all_seeds():
    runs = list(study(["round_robin", "random"], [0, 1]).run())
    assert [(run.policy, run.seed) for run in runs] == [
        ("round_robin", 0),
        ("random", 0),
        ("round_robin", 1),
        ("random", 1),
    ]
    found = results(runs, {}, {"name": "t"}, ["a note"])
    result = found["round_robin"]
    assert result["trace_duration_s"] == pytest.approx(3.0 + 6.0)
    assert (result["offered"], result["trace"]["rows"], result["met"]) == (8, 8, 8)
    assert result["request_goodput"] == pytest.approx(8 / 9)
    assert [s["request_goodput"] for s in result["seeds"]] == pytest.approx([4 / 3, 4 / 6])
    # Two values differ by 2/3: their standard error is half of that.
    assert result["goodput_standard_error"] == pytest.approx(1 / 3)
    assert [row["index"] for row in result["requests"]] == list(range(8))
    assert [row["arrival_s"] for row in result["requests"]] == [0, 1, 2, 3, 3, 5, 7, 9]


def test_only_seeds_that_every_policy_has_got_through_count():
    runs = list(study(["round_robin", "random"], [0, 1]).run())
    assert complete(runs[:3], 2) == runs[:2]
    assert complete(runs[:1], 2) == []


def test_a_stopped_simulation_is_dropped():
    answers = iter([False] * 20)
    runs = list(study(["round_robin", "random"], [0]).run(stop=lambda: next(answers, True)))
    assert len(runs) < 2


def test_the_bound_is_over_all_seeds_and_never_exceeded():
    made = study(["round_robin"], [0, 1])
    bound = made.bound([0, 1])
    (result,) = results(list(made.run()), {}, {}, [], bound).values()
    assert bound == {"met": 8, "slo_attainment": 1.0, "request_goodput": pytest.approx(8 / 9)}
    assert result["upper_bound"]["ratio"] == 1.0
    assert any("more than 100.0% of these requests" in note for note in result["notes"])


def test_there_is_no_bound_where_instances_become_faster():
    faster = SimOptions(changes=(Change(at_s=1.0, instance="t4", slowdown=0.5),))
    slower = SimOptions(changes=(Change(at_s=1.0, instance="t4", slowdown=2.0),))
    assert replace(study(["random"], [0]), options=faster).bound([0]) is None
    assert replace(study(["random"], [0]), options=slower).bound([0]) is not None
