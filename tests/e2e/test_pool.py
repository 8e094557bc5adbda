# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The whole way: `up`, real engines of unequal emulated speed, the gateway, the endpoints, a replayed trace."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import SECRET, clean_environ, get, post

BODY = {"model": "tiny", "prompt": "hello world", "max_tokens": 12, "temperature": 0}
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 12,
    "temperature": 0,
}
SECRET_HEADERS = {"x-goodput-pool-secret": SECRET}


def without_ids(raw):
    """An answer's meaning: everything but ids and times."""
    data = json.loads(raw)
    return {k: v for k, v in data.items() if k not in ("id", "created")}


def events(raw):
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [without_ids(line) for line in lines[:-1]]


def metric(url, name, **labels):
    text = get(f"{url}/metrics")[1].decode()
    for line in text.splitlines():
        if line.startswith(name) and all(f'{k}="{v}"' in line for k, v in labels.items()):
            return float(line.rpartition(" ")[2])
    return 0.0


def test_gateway_serves_the_model_and_is_healthy(up):
    assert json.loads(get(f"{up.gateway}/v1/models")[1])["data"][0]["id"] == "tiny"
    health = json.loads(get(f"{up.gateway}/health")[1])
    assert health["instances"] == {"fast": "healthy", "slow": "healthy"}


@pytest.mark.parametrize(("path", "body"), [("completions", BODY), ("chat/completions", CHAT)])
def test_answers_are_those_of_the_engine(up, stock, path, body):
    status, headers, through = post(f"{up.gateway}/v1/{path}", body, {"x-slo-e2el-ms": "20000"})
    assert status == 200
    assert headers["x-goodput-instance"] in ("fast", "slow")
    _, _, straight = post(f"{stock[0].url}/v1/{path}", body)
    assert without_ids(through) == without_ids(straight)


@pytest.mark.parametrize(("path", "body"), [("completions", BODY), ("chat/completions", CHAT)])
def test_streams_are_those_of_the_engine(up, stock, path, body):
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    status, headers, through = post(f"{up.gateway}/v1/{path}", body)
    assert status == 200
    assert "x-goodput-predicted-e2el-ms" in headers
    _, _, straight = post(f"{stock[0].url}/v1/{path}", body)
    assert events(through)[-1]["usage"] == events(straight)[-1]["usage"]
    assert joined(through) == joined(straight)


def joined(raw):
    texts = []
    for event in events(raw):
        for choice in event["choices"]:
            texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(texts)


def test_info_needs_the_secret_and_tells_the_emulation(up):
    url = f"{up.urls['fast']}/goodput/v1/info"
    assert get(url)[0] == 403
    assert get(url, {"x-goodput-pool-secret": "wrong"})[0] == 403
    status, raw = get(url, SECRET_HEADERS)
    info = json.loads(raw)
    assert status == 200
    assert info["max_num_seqs"] == 8
    assert info["emulation"]["device"] == "NVIDIA H100 SXM 80GB"
    assert info["emulation"]["scale"] == 1.5
    assert info["emulation"]["steps"] > 0


def test_the_plugin_is_on_in_every_api_server_process(up):
    """Connections are spread over two processes; each must know the endpoint."""
    answers = [get(f"{up.urls['slow']}/goodput/v1/info", SECRET_HEADERS) for _ in range(12)]
    assert {status for status, _ in answers} == {200}
    assert json.loads(answers[0][1])["emulation"]["device"] == "NVIDIA T4 16GB"


def test_notes_say_emulated_without_a_secret(up):
    for base in (up.gateway, up.urls["fast"]):
        notes = json.loads(get(f"{base}/goodput/v1/notes")[1])["notes"]
        assert notes
        assert all("emulated" in note for note in notes)


def test_an_emulated_instance_takes_the_profiles_time(up):
    """24 tokens on a T4 take at least 23 steps of 36.4 ms; the engine alone would need a tenth of that."""
    body = {**BODY, "max_tokens": 24, "ignore_eos": True}
    started_s = time.monotonic()
    assert post(f"{up.urls['slow']}/v1/completions", body)[0] == 200
    assert time.monotonic() - started_s >= 23 * 0.0364


def test_the_router_has_learned_the_unequal_speeds(up):
    pool = json.loads(get(f"{up.gateway}/goodput/v1/pool", SECRET_HEADERS)[1])
    steps = {i["name"]: i["decode_step_ms"]["1"] for i in pool["instances"]}
    assert steps["slow"] > 25  # 36 ms by its profile; a loaded machine can only make it slower
    assert steps["slow"] > 1.5 * steps["fast"]


@pytest.mark.parametrize("base", ["gateway", "fast"])
def test_bad_slos_are_refused_at_the_gateway_and_at_an_instance(up, base):
    url = f"{up.gateway if base == 'gateway' else up.urls['fast']}/v1/completions"
    status, _, raw = post(url, BODY, {"x-slo-e2el-ms": "soon"})
    assert (status, json.loads(raw)["error"]["param"]) == (400, "x-slo-e2el-ms")
    status, headers, _ = post(url, BODY, {"x-request-deadline": "1000"})
    assert (status, headers["x-goodput-reject-reason"]) == (422, "expired")


def test_an_infeasible_deadline_is_rejected(up):
    status, headers, _ = post(f"{up.gateway}/v1/completions", BODY, {"x-slo-e2el-ms": "2"})
    assert (status, headers["x-goodput-reject-reason"]) == (422, "infeasible")
    assert headers["x-should-retry"] == "false"


def test_reserved_fields_are_refused_by_an_instance(up):
    body = {**BODY, "vllm_xargs": {"goodput_id": "1"}}
    assert post(f"{up.urls['fast']}/v1/completions", body)[0] == 403
    assert post(f"{up.urls['fast']}/v1/completions", body, SECRET_HEADERS)[0] == 200


def test_outcomes_appear_on_the_instances_own_metrics(up):
    before = metric(up.urls["fast"], "goodput_requests_total", task="e2e", outcome="missed")
    headers = {"x-goodput-task": "e2e", "x-slo-e2el-ms": "1"}
    assert post(f"{up.urls['fast']}/v1/completions", BODY, headers)[0] == 200
    after = metric(up.urls["fast"], "goodput_requests_total", task="e2e", outcome="missed")
    assert after == before + 1


def test_a_client_that_leaves_frees_the_engine(up):
    parts = urlsplit(up.gateway)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    body = json.dumps({**BODY, "max_tokens": 4000, "ignore_eos": True, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    url = up.urls[response.headers["x-goodput-instance"]]
    response.read(100)
    # The gauge may still count a request that has just ended.
    assert metric(url, "vllm:num_requests_running") >= 1
    response.close()
    connection.close()
    end_s = time.monotonic() + 20
    while metric(url, "vllm:num_requests_running") > 0:
        assert time.monotonic() < end_s, "the engine still works for a client that has gone"
        time.sleep(0.2)


def test_bench_replays_a_trace_and_reports(up, tmp_path):
    trace, result, page = (tmp_path / n for n in ("t.jsonl", "r.json", "r.html"))
    cli = [sys.executable, "-m", "vllm_goodput.cli", "bench"]
    common = {"env": clean_environ(), "check": True, "capture_output": True, "text": True}
    generate = ["generate", "-o", str(trace), "--duration-s", "6", "--rate", "3", "--seed", "1"]
    caps = ["--max-prompt-len", "300", "--max-output-len", "40", "--slo-scale", "20"]
    subprocess.run([*cli, *generate, *caps], **common)
    run = ["run", str(trace), "--url", up.gateway, "--vocab-size", "259"]
    done = subprocess.run([*cli, *run, "--json", str(result), "--html", str(page)], **common)
    data = json.loads(result.read_text())
    assert data["offered"] == len(trace.read_text().splitlines())
    assert data["completed"] + sum(data["rejected"].values()) + data["failed"] == data["offered"]
    assert data["failed"] == 0
    assert data["met"] > 0
    assert set(data["per_instance"]) <= {"fast", "slow"}
    assert any("emulated" in note for note in data["notes"])
    assert "emulated" in done.stdout
    assert "emulated" in page.read_text()


def test_logs_are_prefixed_files(up):
    for name in ("fast", "slow", "gateway"):
        lines = (up.log_dir / f"{name}.log").read_text().splitlines()
        assert lines
        assert all(name in line[:60] for line in lines)
