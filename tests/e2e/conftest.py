# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Real vLLM engines, started once for all end-to-end tests.

`up` brings up two emulated instances and the gateway by the user's own command; two more engines run stock vLLM, one
with the plugin installed but off and one that is kept from loading it. All four together need about 9 GB.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.tiny_models import tiny_llama
from tests.fakes.ports import free_ports

SECRET = "end-to-end"
START_TIMEOUT_S = 300
BLOCK_SIZE = 32  # of the engines that publish KV events
CPU_FLAGS = [
    "--gpu-memory-utilization",
    "0.1",
    "--distributed-executor-backend",
    "uni",
    "--enforce-eager",
]
CPU_ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def clean_environ(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GOODPUT_", "VLLM_"))}
    return kept | CPU_ENV | more


def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def post(url: str, body: object, headers: dict[str, str] | None = None):
    """Status, headers and body of a POST."""
    data = json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data=data, headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("model") / "tiny-llama"))


@dataclass
class Up:
    """A running `vllm-goodput up`."""

    gateway: str
    urls: dict[str, str]
    pids: dict[str, int]
    pid: int
    log_dir: Path


@pytest.fixture(scope="session")
def up(model, tmp_path_factory):
    root = tmp_path_factory.mktemp("up")
    ports = free_ports(3)
    deployment = {
        "model": model,
        "args": {"served-model-name": "tiny", "max-num-seqs": 8},
        "log_dir": str(root / "logs"),
        "instances": [
            {"name": "fast", "port": ports[0], "emulate": "h100:1.5"},
            # Two API server processes: the plugin must be on in both.
            {
                "name": "slow",
                "port": ports[1],
                "emulate": "t4:1",
                "args": {"api-server-count": 2},
            },
        ],
        "gateway": {"port": ports[2], "router": {"use_max_tokens": False}},
    }
    config, ready = root / "deployment.yaml", root / "ready.json"
    config.write_text(json.dumps(deployment))
    with (root / "up.log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "vllm_goodput.cli",
                "up",
                str(config),
                "--ready-file",
                str(ready),
            ],
            stdout=log,
            stderr=log,
            env=clean_environ(GOODPUT_POOL_SECRET=SECRET),
            start_new_session=True,
        )
    try:
        _wait(process, ready.exists, root / "up.log")
        data = json.loads(ready.read_text())
        yield Up(
            data["gateway_url"], data["urls"], data["pids"], process.pid, Path(data["log_dir"])
        )
    finally:
        groups = json.loads(ready.read_text())["pids"].values() if ready.exists() else []
        process.send_signal(signal.SIGINT)
        status = process.wait(timeout=60)
    assert status == 0, (root / "up.log").read_text()[-3000:]
    assert not ready.exists()
    assert alive(set(groups)) == [], "children or grandchildren of an instance live on"


def alive(groups: set[int]) -> list[str]:
    """Command names of processes in these groups that are not zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:  # it has just gone
            continue
        state, _, group, *_ = rest.split()
        if int(group) in groups and state != "Z":
            found.append(name)
    return found


@dataclass
class Engine:
    """One `vllm serve` without `--plugin`."""

    url: str
    log: Path


def _serve(model: str, root: Path, name: str, *flags: str, environ: dict[str, str]):
    port, log = free_ports(1)[0], root / f"{name}.log"
    vllm = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    common = ["--port", str(port), "--served-model-name", "tiny", *CPU_FLAGS]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*vllm, *common, *flags], stdout=out, stderr=out, env=environ, start_new_session=True
        )
    return process, Engine(f"http://127.0.0.1:{port}", log)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        process.wait(timeout=60)


@contextmanager
def publishing(
    model: str, root: Path, environ: dict[str, str], *more: str, blocks: int, max_len: int
):
    """(URL, events, replay) of a vLLM with a small prefix cache that publishes KV events."""
    events, replay = free_ports(2)
    publish = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://*:{replay}",
    }
    flags = {
        "max-num-seqs": 4,
        "max-model-len": max_len,
        "block-size": BLOCK_SIZE,
        "num-gpu-blocks-override": blocks,
        "kv-events-config": json.dumps(publish),
    }
    texts = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    texts += ["--enable-prefix-caching", "--enable-prompt-tokens-details", *more]
    process, engine = _serve(model, root, "engine", *texts, environ=environ)
    try:
        _wait(process, lambda: _healthy(engine.url), engine.log)
        yield engine.url, f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
    finally:
        _end([process])


@pytest.fixture(scope="session")
def stock(model, up, tmp_path_factory):
    """(plugin installed but not enabled, plugin not even loaded); after `up`, to spare memory while starting."""
    root = tmp_path_factory.mktemp("stock")
    started = [
        _serve(model, root, name, "--max-num-seqs", "8", environ=clean_environ(**env))
        for name, env in (
            ("installed", {}),
            ("absent", {"VLLM_PLUGINS": "lora_filesystem_resolver"}),
        )
    ]
    try:
        for process, engine in started:
            _wait(process, lambda e=engine: _healthy(e.url), engine.log)
        yield [engine for _, engine in started]
    finally:
        _end([process for process, _ in started])


def _healthy(url: str) -> bool:
    try:
        return get(f"{url}/health")[0] == 200
    except OSError:
        return False


def _wait(process: subprocess.Popen[bytes], condition, log: Path) -> None:
    end_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end_s, log.read_text()[-3000:]
        time.sleep(0.2)
