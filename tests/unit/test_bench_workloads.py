# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The agentic trace generator."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict

import pytest

from vllm_goodput.bench import ReferenceDevice, agentic_mix, load_trace, write_trace
from vllm_goodput.bench.tasks import TASKS
from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import SLO


def by_session(rows):
    sessions = defaultdict(list)
    for row in rows:
        sessions[row.session].append(row)
    return sessions


def gaps(rows):
    return [b.arrival_s - a.arrival_s for a, b in itertools.pairwise(rows)]


def variation(values):
    return statistics.pstdev(values) / statistics.mean(values)


def test_equal_seeds_give_equal_traces():
    assert agentic_mix(3, 50, 4) == agentic_mix(3, 50, 4)
    assert agentic_mix(3, 50, 4) != agentic_mix(4, 50, 4)


def test_rows_start_at_zero_in_order_and_within_the_duration():
    rows = agentic_mix(0, 100, 5)
    assert rows[0].arrival_s == 0
    assert all(gap >= 0 for gap in gaps(rows))
    assert rows[-1].arrival_s < 100


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_rate_and_burstiness(cv):
    rows = agentic_mix(1, 2000, 5, cv=cv)
    assert len(rows) == pytest.approx(10_000, rel=0.03 * max(1, cv))
    assert variation(gaps(rows)) == pytest.approx(cv, rel=0.1)


def test_lengths_have_the_fitted_medians():
    rows = agentic_mix(2, 4000, 5)
    for task, spec in TASKS.items():
        own = [row for row in rows if row.task == task]
        first = [turns[0].prompt_len for turns in by_session(own).values()]
        outputs = [row.output_len for row in own]
        assert statistics.median(outputs) == pytest.approx(spec.output.median, rel=0.1)
        assert statistics.median(first) == pytest.approx(spec.prompt.median, rel=0.2)
        turns = len(own) / len(first)
        assert turns == pytest.approx(spec.mean_turns, rel=0.25)


def test_turns_grow_the_prompt_and_keep_their_gap():
    rows = agentic_mix(5, 1000, 3, mix={"customer_service": 1}, turn_gap_s=7)
    sessions = [turns for turns in by_session(rows).values() if len(turns) > 1]
    assert sessions
    for turns in sessions:
        for before, after in itertools.pairwise(turns):
            assert after.prompt_len > before.prompt_len + before.output_len
            assert after.arrival_s - before.arrival_s >= 7


def test_mix_weights():
    rows = agentic_mix(6, 1000, 5, mix={"math": 3, "code_gen": 1})
    share = sum(row.task == "math" for row in rows) / len(rows)
    assert {row.task for row in rows} == {"math", "code_gen"}
    assert share == pytest.approx(0.75, abs=0.03)


def test_scales_and_caps():
    rows = agentic_mix(7, 500, 5, mix={"creative_writing": 1}, prompt_scale=0.1, output_scale=0.5)
    assert statistics.median(row.prompt_len for row in rows) == pytest.approx(9.5, abs=1)
    assert statistics.median(row.output_len for row in rows) == pytest.approx(180, rel=0.05)
    capped = agentic_mix(7, 500, 5, max_prompt_len=100, max_output_len=16)
    assert max(row.prompt_len for row in capped) == 100
    assert max(row.output_len for row in capped) == 16
    assert min(row.prompt_len for row in capped) >= 1


def test_slo_of_the_reference_device():
    device = ReferenceDevice(ttft_s=0.1, tpot_s=0.01, per_prompt_token_s=0.001)
    for row in agentic_mix(8, 20, 5, slo_scale=2.5, reference=device):
        isolated_s = 0.1 + 0.001 * row.prompt_len + 0.01 * row.output_len
        assert row.slo.e2el_ms == pytest.approx(2500 * isolated_s, abs=1e-3)


def test_slo_by_callable_and_none():
    rows = agentic_mix(9, 20, 5, slo=lambda task, prompt_len, output_len: SLO(ttft_ms=prompt_len))
    assert all(row.slo == SLO(ttft_ms=row.prompt_len) for row in rows)
    assert not any(row.slo for row in agentic_mix(9, 20, 5))


def test_generated_trace_loads_unchanged(tmp_path):
    rows = agentic_mix(10, 30, 5, slo_scale=4)
    write_trace(rows, tmp_path / "t.jsonl")
    assert load_trace(tmp_path / "t.jsonl") == rows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": 0}, "rate must be"),
        ({"duration_s": float("inf")}, "duration_s must be"),
        ({"cv": -1}, "cv must be"),
        ({"seed": -1}, "seed must be"),
        ({"slo_scale": 0}, "slo_scale must be"),
        ({"max_output_len": 0}, "max_output_len must be"),
        ({"rate": 1e9}, "at most 10000000 requests"),
        ({"mix": {"chess": 1}}, "unknown task 'chess'"),
        ({"mix": {"math": -1}}, "weight of math"),
        ({"mix": {"math": 0}}, "at least one weight"),
    ],
)
def test_bad_arguments(fields, message):
    with pytest.raises(ConfigError, match=message):
        agentic_mix(**({"seed": 0, "duration_s": 10, "rate": 1} | fields))


def test_bad_reference_device():
    with pytest.raises(ConfigError, match="tpot_s"):
        ReferenceDevice(tpot_s=-1)
