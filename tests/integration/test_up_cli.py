# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput up` as a process of its own; its children are tests/fakes/fake_serve.py."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.fakes.ports import free_ports

FAKE = Path(__file__).parents[1] / "fakes" / "fake_serve.py"


class Up:
    """A running `up` in a directory, leading a session of its own."""

    def __init__(self, directory, *args, env=None):
        self.ready_file = directory / "ready.json"
        self.process = subprocess.Popen(
            [sys.executable, FAKE, "up", "deployment.yaml", "--ready-file", self.ready_file, *args],
            cwd=directory,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ready(self):
        if not poll(self.ready_file.exists):
            raise AssertionError(f"not ready: {self.end(signal.SIGTERM)}")
        return json.loads(self.ready_file.read_text())

    def end(self, signum=None):
        """Send a signal and wait; returns the exit status, stdout and stderr."""
        if signum is not None:
            os.killpg(self.process.pid, signum)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


def poll(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return result


def runs(pid):
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def none_runs(pids):
    return not any(runs(pid) for pid in pids)


def write(directory, *envs, **changes):
    instances = [
        {"name": f"i{n}", "port": port, "env": env}
        for n, (port, env) in enumerate(zip(free_ports(len(envs)), envs, strict=True))
    ]
    data = {"model": "m", "instances": instances, "gateway": {"port": 0}, "stop_timeout_s": 5}
    data = data | {"start_timeout_s": 10} | changes
    (directory / "deployment.yaml").write_text(yaml.safe_dump(data))
    return data


def get(url):
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.loads(response.read())


def started_pids(directory):
    """Process ids from the first lines of all logs."""
    texts = [path.read_text() for path in (directory / "logs").glob("*.log")]
    return [int(t.split("started, process ")[1].split()[0]) for t in texts if "process " in t]


@pytest.fixture
def up(tmp_path):
    running = []

    def start(*args, **options):
        running.append(Up(tmp_path, *args, **options))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_a_signal(tmp_path, up, signum):
    write(tmp_path, {"FAKE_CHILD": "polite"}, {})
    one = up()
    ready = one.ready()
    assert list(ready["pids"]) == ["i0", "i1", "gateway"]
    grandchildren = get(f"{ready['urls']['i0']}/info")["children"]
    assert get(f"{ready['gateway_url']}/info")["pid"] == ready["pids"]["gateway"]
    status, out, err = one.end(signum)
    assert (status, err) == (0, "")
    assert f"{ready['gateway_url']}/v1" in out
    assert str(tmp_path / "logs") in out
    assert out.count("Stopping 3 processes") == 1
    assert not one.ready_file.exists()
    assert none_runs([*ready["pids"].values(), *grandchildren])


def test_interrupted_during_start(tmp_path, up):
    write(tmp_path, {"FAKE_HEALTHY_AFTER_S": "never"}, {"FAKE_HEALTHY_AFTER_S": "never"})
    one = up()
    assert poll(lambda: len(started_pids(tmp_path)) == 2)
    status, _, err = one.end(signal.SIGINT)
    assert (status, err) == (0, "")
    assert none_runs(started_pids(tmp_path))


def test_a_second_interrupt_kills(tmp_path, up):
    write(tmp_path, {"FAKE_IGNORE_SIGTERM": 1}, stop_timeout_s=1000)
    one = up()
    pids = one.ready()["pids"].values()
    os.killpg(one.process.pid, signal.SIGINT)
    assert poll(lambda: not one.ready_file.exists())
    status, _, err = one.end(signal.SIGINT)
    assert (status, err) == (0, "")
    assert none_runs(pids)


def test_sigkill_of_up_leaves_nothing(tmp_path, up):
    write(tmp_path, {"FAKE_CHILD": "polite"}, {"FAKE_CHILD": "stubborn"}, stop_timeout_s=1)
    one = up()
    ready = one.ready()
    pids = [*ready["pids"].values()]
    for url in ready["urls"].values():
        pids += get(f"{url}/info")["children"]
    assert len(pids) == 5
    one.end(signal.SIGKILL)
    assert poll(lambda: none_runs(pids))


def test_a_crash_during_start(tmp_path, up):
    write(tmp_path, {}, {"FAKE_EXIT": "out of memory"})
    status, _, err = up().end()
    assert status == 1
    assert "    out of memory" in err
    assert f"i1 exited with status 3 during start; log: {tmp_path}/logs/i1.log" in err
    assert "Traceback" not in err
    assert none_runs(started_pids(tmp_path))


def test_the_death_of_the_gateway(tmp_path, up):
    write(tmp_path, {})
    one = up()
    pids = one.ready()["pids"]
    os.kill(pids["gateway"], signal.SIGKILL)
    status, _, err = one.end()
    assert status == 1
    assert err.startswith("vllm-goodput: error: gateway was killed by SIGKILL")
    assert none_runs(pids.values())
    assert not one.ready_file.exists()


def test_the_death_of_an_instance_is_reported(tmp_path, up):
    write(tmp_path, {}, {})
    one = up()
    ready = one.ready()
    os.kill(ready["pids"]["i0"], signal.SIGKILL)
    assert "i0 was killed by SIGKILL" in one.process.stderr.readline()
    assert get(f"{ready['urls']['i1']}/info")["pid"] == ready["pids"]["i1"]
    assert one.end(signal.SIGINT)[0] == 0


def test_a_taken_port(tmp_path, up):
    data = write(tmp_path, {})
    port = data["instances"][0]["port"]
    with socket.create_server(("127.0.0.1", port)):
        status, _, err = up().end()
    assert status == 1
    assert f"i0: port {port} on 127.0.0.1 is already in use" in err


def test_dry_run_starts_nothing_and_shows_no_secret(tmp_path, up):
    write(tmp_path, {"A": "b c"}, args={"max-num-seqs": 16})
    one = up("--dry-run", "--log-dir", "elsewhere", env={"GOODPUT_POOL_SECRET": "s3cret"})
    status, out, err = one.end()
    assert (status, err) == (0, "")
    assert "serve m --host 127.0.0.1 --port" in out
    assert "--max-num-seqs 16" in out
    assert "A='b c'" in out
    assert f"route --config {tmp_path}/elsewhere/pool.yaml" in out
    assert "policy: goodput" in out
    assert "s3cret" not in out
    assert [p.name for p in tmp_path.iterdir()] == ["deployment.yaml"]


@pytest.mark.parametrize(
    ("text", "args", "message"),
    [
        ("instances: [", (), "deployment.yaml: not valid YAML"),
        ("instances: []", (), "deployment.yaml: instances: "),
        ("model: m\ninstances: [{name: a, port: 1, prot: 2}]", (), "instances.0.prot: unknown key"),
        (
            "model: m\ninstances: [{name: a, port: 9}]",
            ("--start-parallel", "0"),
            "--start-parallel",
        ),
        (
            "model: m\ninstances: [{name: a, port: 9}]",
            ("--start-timeout-s", "nan"),
            "--start-timeout-s",
        ),
        ("model: m\ninstances: [{name: a, port: 9}]", ("--ready-file", "no/x"), "--ready-file"),
    ],
)
def test_bad_input_is_an_error_line(tmp_path, up, text, args, message):
    (tmp_path / "deployment.yaml").write_text(text)
    status, out, err = up(*args).end()
    assert (status, out) == (2, "")
    assert err.startswith("vllm-goodput: error: ")
    assert message in err
    assert "Traceback" not in err


def test_an_unwritable_log_directory(tmp_path, up):
    write(tmp_path, {})
    status, _, err = up("--log-dir", "deployment.yaml/logs").end()
    assert status == 1
    assert "log directory" in err
    assert "Traceback" not in err
