# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Installed but off, the plugin changes nothing of vLLM; enabled from Python, it reaches the engine process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import CPU_FLAGS, clean_environ, get, post

BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 0, "logprobs": 2}


def metric_names(url):
    lines = get(f"{url}/metrics")[1].decode().splitlines()
    return {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}


def test_same_routes_metrics_and_answers_as_without_the_package(stock):
    installed, absent = stock
    for engine in stock:
        assert post(f"{engine.url}/v1/completions", BODY)[0] == 200
    pages = [json.loads(get(f"{e.url}/openapi.json")[1]) for e in (installed, absent)]
    assert pages[0] == pages[1]
    assert metric_names(installed.url) == metric_names(absent.url)
    answers = []
    for engine in stock:
        _, headers, raw = post(f"{engine.url}/v1/completions", BODY, {"x-slo-e2el-ms": "nonsense"})
        answer = {k: v for k, v in json.loads(raw).items() if k not in ("id", "created")}
        answers.append((answer, sorted(headers)))
    assert answers[0] == answers[1]


def test_no_endpoint_and_no_log_line_of_ours(stock):
    installed, _ = stock
    assert get(f"{installed.url}/goodput/v1/info")[0] == 404
    assert get(f"{installed.url}/goodput/v1/notes")[0] == 404
    lines = installed.log.read_text().lower().splitlines()
    assert not [line for line in lines if "goodput" in line and '"get /goodput' not in line]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--plugin", "godput"], "unknown plugin 'godput'"),
        (["--plugin", "goodput", "--goodput-slo", "e2el:-1"], "e2el must be a number"),
    ],
)
def test_a_wrong_flag_ends_vllm_before_the_model_loads(model, flags, message):
    done = subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, *CPU_FLAGS, *flags],
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("vllm-goodput: error:")
    assert message in last
    assert "EngineCore" not in done.stderr + done.stdout


def test_help_lists_every_flag_in_a_group_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "--help=goodput"],
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=120,
        check=True,
    )
    for flag in ("--plugin", "--goodput-config", "--goodput-slo", "--goodput-emulate"):
        assert flag in done.stdout


PYTHON = """
import sys
from vllm_goodput import enable
enable({"emulate": "t4:0.5"})
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], enforce_eager=True, gpu_memory_utilization=0.1, max_num_seqs=4)
    llm.generate(["hello"], SamplingParams(max_tokens=5, ignore_eos=True))
    print("STATS", llm.llm_engine.engine_core.call_utility("goodput_stats"))
"""


def test_enable_from_python_reaches_the_engine_process(model, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(PYTHON)
    done = subprocess.run(
        [sys.executable, str(script), model],
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=200,
        check=False,
    )
    stats = [line for line in done.stdout.splitlines() if line.startswith("STATS")]
    assert stats, done.stderr[-3000:]
    assert "NVIDIA T4 16GB" in stats[0]
    assert "'steps': 5" in stats[0]
