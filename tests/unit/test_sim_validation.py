# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The benchmark of the simulator: its arithmetic, on what it simulated itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import sim_validation
from benchmarks.sim_validation_cells import CELLS, Cell, deployment, instances
from benchmarks.sim_validation_fit import REPEATS, compare, fit, predict, simulate_once
from benchmarks.sim_validation_live import Measured
from vllm_goodput.sim import Overheads
from vllm_goodput.sim.pool_file import load_pool

LIGHT = Cell("single", "round_robin", 0.5, fitted=True)
NO_OVERRUNS = {"l40s": {"overrun_fraction": 0.0}}
TRUE = Overheads(request_s=0.021, token_s=0.009, prompt_token_s=6e-6)


def pretended(cell=LIGHT, overruns=NO_OVERRUNS, factor=1.0):
    """A measurement that is a simulation with known constants, its latencies stretched."""
    records = [
        replace(r, ttft_s=r.ttft_s * factor, e2el_s=r.e2el_s * factor)
        for r in simulate_once(cell, 20.0, 0, TRUE)
    ]
    return Measured(cell, records, overruns)


def test_the_fit_finds_what_was_added():
    found = fit(pretended(), 20.0, 0)
    # How the two parts before and after the engine share the time to the first token is less certain.
    assert found.request_s + found.token_s == pytest.approx(0.030, abs=0.003)
    repeats = predict(LIGHT, 20.0, 0, found)
    assert len(repeats) == REPEATS
    assert max(compare(pretended(), repeats).errors.values()) < 0.01


def test_errors_are_relative_to_what_was_measured():
    comparison = compare(pretended(factor=1.25), [pretended().records])
    assert comparison.errors["e2el_p50_error"] == pytest.approx(0.2)
    assert comparison.errors["e2el_p95_error"] == pytest.approx(0.2)
    met = [r.outcome == "met" for r in pretended(factor=1.25).records]
    expected = sum(met) / max(r.arrival_s for r in pretended().records)
    assert comparison.goodput[0] == pytest.approx(expected)


def test_targets_are_about_valid_cells_that_nothing_was_fitted_on():
    simulated = [pretended().records]
    bad = {"l40s": {"overrun_fraction": 0.06}, "t4": {"overrun_fraction": 0.0}}
    held_out = replace(LIGHT, fitted=False)
    comparisons = [
        compare(pretended(LIGHT, factor=3.0), simulated),
        compare(pretended(held_out, bad, factor=2.0), simulated),
        compare(pretended(held_out, factor=1.25), simulated),
    ]
    found = {t.name: t for t in sim_validation.targets(comparisons)}
    assert [c.valid for c in comparisons] == [True, False, True]
    assert found["single_e2el_p50_error"].value == pytest.approx(0.2)
    assert found["single_e2el_p50_error"].met is False
    assert found["pool_goodput_error"].met is None


def test_what_was_saved_is_used_again(tmp_path, capsys):
    cells = [pretended(), pretended(replace(LIGHT, fitted=False, rate=0.7))]
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"duration_s": 20.0, "cells": [m.as_dict() for m in cells]}))
    assert sim_validation.main(["--load", str(path), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [r["fitted"] for r in data["results"]] == [True, False]
    assert data["targets"][0]["met"] is True
    assert data["settings"]["duration_s"]["single"] == 20.0


def test_every_pool_has_one_cell_to_fit_and_others_to_predict():
    for pool in {cell.pool for cell in CELLS}:
        fitted = [cell.fitted for cell in CELLS if cell.pool == pool]
        assert sum(fitted) == 1
        assert len(fitted) >= 3


def test_the_simulated_pool_is_the_deployment(tmp_path):
    import yaml

    path = tmp_path / "deployment.yaml"
    path.write_text(yaml.safe_dump(deployment("pool").model_dump(mode="json")))
    assert list(load_pool(str(path)).instances) == instances("pool")
