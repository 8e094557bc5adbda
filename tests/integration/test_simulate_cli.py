# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput simulate` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

POOL = """
instances:
  - {name: fast, emulate: h100, max_num_seqs: 8}
  - {name: slow, emulate: "t4:1.5", max_num_seqs: 8}
router: {predictor: {kind: histogram}}
"""
DEPLOYMENT = """
model: some/model
args: {max-num-seqs: 4}
instances:
  - {name: one, port: 18101, emulate: l40s}
gateway: {port: 18100, router: {policy: just_enough, predictor: {kind: histogram}}}
"""
SHORT = ("--duration-s", "10", "--rate", "6")


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "pool.yaml"
    path.write_text(POOL)
    return path


def command(*args):
    return [sys.executable, "-m", "vllm_goodput.cli", "simulate", *map(str, args)]


def simulate(*args):
    done = subprocess.run(
        command(*args),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "160"},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_policies_are_compared_over_seeds(pool, tmp_path):
    json_path, html_path = tmp_path / "r.json", tmp_path / "r.html"
    code, out, err = simulate(
        pool, *SHORT, "--policy", "round_robin", "--policy", "goodput", "--seeds", 3, 4,
        "--note", "mine", "--json", json_path, "--html", html_path,
    )  # fmt: skip
    assert code == 0, err
    assert "seed 4" in out
    assert "simulated, not measured" in out
    data = json.loads(json_path.read_text())
    assert list(data["results"]) == ["round_robin", "goodput"]
    assert data["comparison"]["baseline"] == "round_robin"
    assert [row["scale"] for row in data["pool"]] == [1.0, 1.5]
    result = data["results"]["goodput"]
    assert [seed["seed"] for seed in result["seeds"]] == [3, 4]
    assert result["notes"][0] == "mine"
    bound = result["upper_bound"]
    assert bound["met"] >= result["met"]
    assert bound["ratio"] == pytest.approx(result["met"] / bound["met"])
    assert "no policy can meet the SLOs of more than" in out
    assert "over 2 seeds" in html_path.read_text()
    assert "requests" not in result
    # Over all seeds, goodput is what was met over the time of all traces.
    assert result["request_goodput"] == pytest.approx(result["met"] / result["trace_duration_s"])
    assert "Goodput comparison" in html_path.read_text()


def test_equal_commands_give_equal_results(pool):
    results = []
    for _ in range(2):
        code, out, err = simulate(pool, *SHORT, "--json", "-", "--requests")
        assert code == 0, err
        (result,) = json.loads(out)["results"].values()
        assert len(result["requests"]) == result["offered"]
        results.append([result["requests"], result["slo_attainment"]])
    assert results[0] == results[1]


def test_a_deployment_and_a_trace(tmp_path):
    deployment, trace = tmp_path / "deployment.yaml", tmp_path / "trace.jsonl"
    deployment.write_text(DEPLOYMENT)
    rows = [{"arrival_s": i, "prompt_len": 50, "output_len": 5} for i in range(6)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    html_path = tmp_path / "r.html"
    code, out, err = simulate(
        deployment, trace, "--goodput", "e2el:1000", "--limit", 4, "--json", "-",
        "--html", html_path, "--slow", "one=100@1.5", "--no-migration", "--use-max-tokens",
        "--no-bound",
    )  # fmt: skip
    assert code == 0, err
    data = json.loads(out)
    (spec,) = data["pool"]
    assert (spec["max_num_seqs"], spec["block_size"], spec["async_scheduling"]) == (4, 128, False)
    (result,) = data["results"].values()
    assert (result["offered"], result["trace"]["name"]) == (4, "trace.jsonl")
    assert 2 <= result["met"] < 4  # the instance becomes too slow
    assert "upper_bound" not in result
    assert "By instance" in html_path.read_text()


def test_the_instance_that_is_down_serves_nothing(pool):
    code, out, err = simulate(
        pool, *SHORT, "--policy", "round_robin", "--down", "fast@0", "--json", "-"
    )
    assert code == 0, err
    (result,) = json.loads(out)["results"].values()
    assert list(result["per_instance"]) == ["slow"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "invalid choice: 'best'"),
        (["--baseline", "random"], "--baseline: expected one of goodput, got 'random'"),
        (["--limit", "3"], "--limit is for a trace only"),
        (["--slow", "fast@3"], "--slow: expected NAME=FACTOR@S, got 'fast@3'"),
        (["--slow", "fast=0@3"], "slowdown must be a number > 0"),
        (["--slow", "nobody=2@3"], "no instance 'nobody'; there are fast, slow"),
        (["--down", "fast@5-2"], "the second time must be later"),
        (["--seeds", "-1"], "--seeds must be at least 0, got -1"),
        (["--mix", "math"], "--mix: expected TASK=WEIGHT, got 'math'"),
        (["--mix", "poetry=1"], "unknown task 'poetry'"),
        (["--kv-tokens", "0"], "--kv-tokens must be at least 1, got 0"),
        (["--request-overhead-ms", "-1"], "--request-overhead-ms must be a number >= 0, got -1"),
        (["--rate", "0"], "rate must be a finite number > 0"),
        (["--json", "/nowhere/r.json"], "cannot write /nowhere/r.json"),
        (["missing.jsonl"], "missing.jsonl"),
        (["--timeout-s", "0"], "timeout_s must be greater than 0, got 0.0"),
        (["--probe-word-tokens", "0"], "probe_word_tokens must be greater than 0, got 0.0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(pool, arguments, message):
    code, out, err = simulate(pool, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not out


def test_generation_flags_do_not_go_with_a_trace(pool, tmp_path):
    code, _, err = simulate(pool, tmp_path / "t.jsonl", "--rate", 5)
    assert code == 2
    assert "--rate is for a generated workload only" in err


def test_an_instance_without_a_device(tmp_path):
    path = tmp_path / "deployment.yaml"
    path.write_text(DEPLOYMENT.replace(", emulate: l40s", ""))
    code, _, err = simulate(path)
    assert code == 2
    assert "instances.one: a simulation needs to know the device" in err


def test_an_interrupt_reports_what_is_complete(pool, tmp_path):
    json_path = tmp_path / "r.json"
    # A seed is through in a moment, all of them take minutes.
    process = subprocess.Popen(
        command(
            pool, "--rate", 5, "--duration-s", 10, "--seeds", *range(30_000),
            "--policy", "round_robin", "--json", json_path,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "simulating" in process.stderr.readline()
    assert "simulation " in process.stderr.readline()  # ten seconds later
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    data = json.loads(json_path.read_text())
    (result,) = data["results"].values()
    assert data["interrupted"] is True
    assert 1 <= len(result["seeds"]) < 30_000
    assert any("seeds are in these results" in note for note in result["notes"])
    assert result["failed"] == 0


def test_help_states_units_and_defaults():
    code, out, _ = simulate("--help")
    assert code == 0
    for text in ("(default: 60)", "seconds", "ms", "tokens", "req/s"):
        assert text in out
