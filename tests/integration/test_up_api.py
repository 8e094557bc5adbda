# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`Deployment` over real processes: tests/fakes/fake_serve.py in place of vLLM and the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.ports import free_ports
from vllm_goodput.config import DeploymentConfig, PoolConfig, load_yaml, validate
from vllm_goodput.deploy import Deployment
from vllm_goodput.deploy.report import LogReporter
from vllm_goodput.errors import DeployError

FAKE = Path(__file__).parents[1] / "fakes" / "fake_serve.py"
COMMAND = (sys.executable, str(FAKE))


class Recorder(LogReporter):
    def __init__(self):
        super().__init__()
        self.problems: list[str] = []
        self.states: list[tuple[str, str]] = []

    def tick(self, changed=None):
        if changed is not None:
            self.states.append((changed.name, changed.state))

    def problem(self, text, tail=()):
        self.problems.append("\n".join([text, *tail]))

    async def until(self, text):
        async with asyncio.timeout(8):
            while not any(text in problem for problem in self.problems):
                await asyncio.sleep(0.02)


def config(tmp_path, *envs, **changes):
    """A deployment of one fake instance per mapping of its FAKE_* environment."""
    instances = [
        {"name": f"i{n}", "port": port, "env": env}
        for n, (port, env) in enumerate(zip(free_ports(len(envs)), envs, strict=True))
    ]
    data = {
        "model": "m",
        "instances": instances,
        "gateway": {"port": 0},
        "log_dir": str(tmp_path / "logs"),
        "start_timeout_s": 8,
        "stop_timeout_s": 5,
    }
    return validate(data | changes, DeploymentConfig, "test")


def deployment(cfg, recorder=None, **options):
    return Deployment(cfg, command=COMMAND, reporter=recorder or Recorder(), cpu=False, **options)


async def info(url):
    async with aiohttp.ClientSession() as session, session.get(f"{url}/info") as response:
        return await response.json(content_type=None)


def runs(pid):
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def log_of(cfg, name):
    return (Path(cfg.log_dir) / f"{name}.log").read_text()


async def test_everything_runs_inside_the_context_and_nothing_after(tmp_path):
    cfg = config(tmp_path, {"FAKE_HEALTHY_AFTER_S": 0.5, "COLOUR": "red"}, {})
    async with deployment(cfg) as d:
        pids = d.pids
        assert list(pids) == ["i0", "i1", "gateway"]
        seen = [await info(url) for url in (*d.instance_urls.values(), d.gateway_url)]
        assert [s["pid"] for s in seen] == list(pids.values())
        assert seen[0]["env"]["COLOUR"] == "red"
        assert len({s["env"]["GOODPUT_POOL_SECRET"] for s in seen}) == 1
        pool = load_yaml(d.plan.pool_path(), PoolConfig)
        assert {i.name: i.url for i in pool.instances} == d.instance_urls
        assert d.gateway_url == f"http://127.0.0.1:{pool.port}"
        assert stat.S_IMODE(d.plan.pool_path().stat().st_mode) == 0o600
    assert d.pids == {}
    assert not any(runs(pid) for pid in pids.values())


async def test_the_secret_of_the_environment_is_used(tmp_path):
    environ = {**os.environ, "GOODPUT_POOL_SECRET": "given"}
    async with deployment(config(tmp_path, {}), environ=environ, gateway=False) as d:
        seen = await info(d.instance_urls["i0"])
    assert seen["env"]["GOODPUT_POOL_SECRET"] == "given"
    assert "given" not in " ".join(seen["argv"])


async def test_taken_ports_are_named_before_anything_starts(tmp_path):
    cfg = config(tmp_path, {}, {})
    d = deployment(cfg)
    with (
        socket.create_server(("127.0.0.1", cfg.instances[1].port)),
        pytest.raises(DeployError, match=rf"i1: port {cfg.instances[1].port} .* already in use"),
    ):
        await d.start()
    assert d.pids == {}


async def test_a_log_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    d = deployment(config(tmp_path, {}, log_dir=str(tmp_path / "file" / "logs")))
    with pytest.raises(DeployError, match=r"log directory .* cannot be written"):
        await d.start()


async def test_a_program_that_is_not_there(tmp_path):
    d = Deployment(config(tmp_path, {}), command=["/no/such/program"], reporter=Recorder())
    with pytest.raises(DeployError, match="i0: cannot run /no/such/program"):
        async with d:
            pass


async def test_a_crash_during_start_shows_its_last_lines_and_stops_the_rest(tmp_path):
    cfg = config(tmp_path, {}, {"FAKE_EXIT": "out of memory"})
    recorder = Recorder()
    d = deployment(cfg, recorder)
    with pytest.raises(DeployError, match=r"i1 exited with status 3 during start; log: .*i1\.log"):
        async with d:
            pass
    assert "a first line\nout of memory" in recorder.problems[0]
    assert "out of memory" in log_of(cfg, "i1")
    assert d.pids == {}


async def test_one_that_dies_while_others_start_ends_the_start(tmp_path):
    cfg = config(tmp_path, {}, {"FAKE_HEALTHY_AFTER_S": "never"})
    recorder = Recorder()
    d = deployment(cfg, recorder)
    start = asyncio.create_task(d.start())
    while ("i0", "healthy") not in recorder.states:
        await asyncio.sleep(0.02)
    os.kill(d.pids["i0"], signal.SIGKILL)
    with pytest.raises(DeployError, match="i0 was killed by SIGKILL during start"):
        await start
    await d.stop()


async def test_one_that_never_gets_healthy(tmp_path):
    cfg = config(tmp_path, {}, {"FAKE_HEALTHY_AFTER_S": "never"}, start_timeout_s=1.0)
    d = deployment(cfg)
    with pytest.raises(DeployError, match=r"i1 did not answer http://.*/health within 1 s"):
        async with d:
            pass
    assert d.pids == {}


async def test_start_parallel_limits_how_many_start_at_a_time(tmp_path):
    cfg = config(tmp_path, {"FAKE_HEALTHY_AFTER_S": "never"}, {}, start_timeout_s=1.0)
    d = deployment(cfg, start_parallel=1)
    with pytest.raises(DeployError, match="i0"):
        async with d:
            pass
    assert not (Path(cfg.log_dir) / "i1.log").exists()


async def test_a_later_death_is_reported_and_the_others_live_on(tmp_path):
    cfg, recorder = config(tmp_path, {}, {}), Recorder()
    async with deployment(cfg, recorder) as d:
        os.kill(d.pids["i0"], signal.SIGKILL)
        await recorder.until("i0 was killed by SIGKILL")
        assert str(Path(cfg.log_dir) / "i0.log") in recorder.problems[0]
        assert list(d.pids) == ["i1", "gateway"]
        assert (await info(d.instance_urls["i1"]))["pid"] == d.pids["i1"]


async def test_what_a_dead_instance_leaves_behind_is_ended(tmp_path):
    cfg, recorder = config(tmp_path, {"FAKE_CHILD": "polite"}, {}), Recorder()
    async with deployment(cfg, recorder) as d:
        (orphan,) = (await info(d.instance_urls["i0"]))["children"]
        os.kill(d.pids["i0"], signal.SIGKILL)
        async with asyncio.timeout(8):
            while runs(orphan):
                await asyncio.sleep(0.02)


async def test_the_death_of_the_gateway_ends_it(tmp_path):
    async with deployment(config(tmp_path, {})) as d:
        os.kill(d.pids["gateway"], signal.SIGKILL)
        with pytest.raises(DeployError, match="gateway was killed by SIGKILL"):
            await asyncio.wait_for(d.wait(), 8)


async def test_the_death_of_all_instances_ends_it(tmp_path):
    recorder = Recorder()
    async with deployment(config(tmp_path, {}, {}), recorder) as d:
        os.kill(d.pids["i0"], signal.SIGTERM)
        await recorder.until("i0 exited with status 0")
        os.kill(d.pids["i1"], signal.SIGTERM)
        with pytest.raises(DeployError, match="no instance is left"):
            await asyncio.wait_for(d.wait(), 8)


@pytest.mark.parametrize("kind", ["polite", "stubborn"])
async def test_grandchildren_are_gone_too(tmp_path, kind):
    async with deployment(config(tmp_path, {"FAKE_CHILD": kind}, stop_timeout_s=0.5)) as d:
        (grandchild,) = (await info(d.instance_urls["i0"]))["children"]
        assert runs(grandchild)
    assert not runs(grandchild)


async def test_sigterm_ignored_is_followed_by_sigkill(tmp_path):
    cfg = config(tmp_path, {"FAKE_IGNORE_SIGTERM": 1}, stop_timeout_s=0.3)
    async with deployment(cfg, gateway=False) as d:
        pid = d.pids["i0"]
    assert not runs(pid)


async def test_hurry_does_not_wait(tmp_path):
    cfg = config(tmp_path, {"FAKE_IGNORE_SIGTERM": 1}, stop_timeout_s=1000)
    async with asyncio.timeout(20):
        async with deployment(cfg, gateway=False) as d:
            pid = d.pids["i0"]
            d.hurry()
        assert not runs(pid)


async def test_a_cancelled_stop_kills(tmp_path):
    cfg = config(tmp_path, {"FAKE_IGNORE_SIGTERM": 1}, stop_timeout_s=1000)
    d = deployment(cfg, gateway=False)
    await d.start()
    pid = d.pids["i0"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(d.stop(), 0.2)
    async with asyncio.timeout(8):
        while runs(pid):
            await asyncio.sleep(0.02)
    await d.stop()


async def test_much_output_does_not_stall_a_child(tmp_path):
    cfg = config(tmp_path, {"FAKE_SPAM_LINES": 20_000})
    async with deployment(cfg, gateway=False):
        pass
    assert "spam 19999 " in log_of(cfg, "i0")


async def test_gateways_in_turn_over_the_same_instances(tmp_path):
    async with deployment(config(tmp_path, {}), gateway=False) as d:
        with pytest.raises(DeployError, match="no gateway"):
            _ = d.gateway_url
        instance = d.pids["i0"]
        for policy in ("round_robin", "least_request"):
            async with d.run_gateway(policy=policy) as url:
                assert url == d.gateway_url
                assert load_yaml(d.plan.pool_path(), PoolConfig).router.policy == policy
                gateway = (await info(url))["pid"]
            assert not runs(gateway)
        async with d.run_gateway(name="x") as one, d.run_gateway(name="y") as two:
            assert one != two
        assert d.pids == {"i0": instance}


async def test_an_extra_gateway_that_dies_is_an_error(tmp_path):
    async with deployment(config(tmp_path, {}), gateway=False) as d:
        context = d.run_gateway()
        await context.__aenter__()
        os.kill(d.pids["gateway"], signal.SIGKILL)
        while "gateway" in d.pids:
            await asyncio.sleep(0.02)
        with pytest.raises(DeployError, match="gateway was killed by SIGKILL"):
            await context.__aexit__(None, None, None)


async def test_an_extra_gateway_that_does_not_start(tmp_path):
    environ = {**os.environ, "FAKE_GATEWAY_EXIT": "no"}
    async with deployment(config(tmp_path, {}), gateway=False, environ=environ) as d:
        with pytest.raises(DeployError, match="gateway exited with status 3"):
            async with d.run_gateway():
                pass
        assert list(d.pids) == ["i0"]
