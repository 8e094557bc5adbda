# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""benchmarks.pool_live over fake engines: our gateway, a stand-in for a peer, and the real peers where installed."""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from benchmarks import pool_live
from benchmarks import pool_live_trace as trace
from benchmarks.pool_live_cells import Cell, Store, plan
from benchmarks.pool_live_engines import Counters, Engines
from benchmarks.pool_live_peers import SUBCOMMANDS, Peer, PeerError, parse_peer, run_peer
from benchmarks.pool_live_report import OURS, as_rows, judge, levels, write_pages
from benchmarks.pool_live_run import Bench, Workload, last_deadline_s
from tests.fakes.fake_vllm import FakeVLLM
from vllm_goodput.bench import TraceRow
from vllm_goodput.config import PoolConfig
from vllm_goodput.errors import ConfigError, DeployError
from vllm_goodput.gateway.app import build_app
from vllm_goodput.slo import SLO

# A router with the interface of the peers: it sends everything to the first instance.
STAND_IN = """#!{python}
import argparse, aiohttp
from aiohttp import web
parser = argparse.ArgumentParser()
for name in ("host", "prometheus-host", "log-level", "policy"):
    parser.add_argument("--" + name)
for name in ("port", "prometheus-port"):
    parser.add_argument("--" + name, type=int)
parser.add_argument("--worker-urls", nargs="+")
args = parser.parse_args()
if args.policy == "none":
    raise SystemExit("no such policy")
async def forward(request):
    async with aiohttp.ClientSession() as http:
        url = args.worker_urls[0] + request.path
        async with http.request(request.method, url, data=await request.read()) as answer:
            return web.Response(body=await answer.read(), content_type=answer.content_type)
async def readiness(request):
    return web.json_response({{"status": "ready", "healthy_workers": len(args.worker_urls)}})
app = web.Application()
app.router.add_get("/readiness", readiness)
app.router.add_route("*", "/{{tail:.*}}", forward)
web.run_app(app, host=args.host, port=args.port, print=None)
"""


@contextlib.asynccontextmanager
async def gateway(urls):
    """Our gateway over the instances at `urls`."""
    data = {
        "instances": [{"name": name, "url": url} for name, url in urls.items()],
        "probe": {"enabled": False},
        "health": {"interval_s": 0.1},
        "router": {"predictor": {"kind": "histogram"}, "initial_output_len": 8},
    }
    runner = web.AppRunner(build_app(PoolConfig.model_validate(data)), shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def engines(count=2, **settings):
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeVLLM(**settings)) for _ in range(count)]


def workload(isolated_s=60.0, warmup_s=0.5):
    rows = [
        TraceRow(
            arrival_s=0.1 * i, task="sql", session=f"s{i % 3}", prompt_len=20 + i, output_len=5
        )
        for i in range(12)
    ]
    return Workload(rows, warmup_s, 0.6, lambda *_: isolated_s)


def bench(fakes, routers, tmp_path, work=None):
    urls = {f"i{n}": fake.url for n, fake in enumerate(fakes)}
    store, console = Store(tmp_path, resume=False), Console(quiet=True)
    return Bench(routers, Engines(urls), work or workload(), store, console)


def stand_in(tmp_path, policy="any"):
    program = tmp_path / "venvs" / "vllm-router" / "bin" / "vllm-router"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    return Peer("vllm-router", policy, venvs=tmp_path / "venvs")


async def test_ours_and_a_peer_replay_the_same_requests(tmp_path):
    async with engines() as fakes:
        urls = {f"i{n}": fake.url for n, fake in enumerate(fakes)}
        peer = stand_in(tmp_path)
        routers = {
            OURS: partial(gateway, urls),
            peer.name: partial(run_peer, peer, list(urls.values()), tmp_path),
        }
        cells = plan([1.0], 2, list(routers))
        run = bench(fakes, routers, tmp_path)
        await run.run(cells)
    assert run.missing == {}
    results = {cell: run.store.load(cell) for cell in cells}
    for result in results.values():
        # Of twelve requests the five before 0.5 s are warm-up; goodput refers to the 0.6 s after it.
        assert (result["offered"], result["met"], result["failed"]) == (7, 7, 0)
        assert result["request_goodput"] == pytest.approx(7 / 0.6)
        assert min(row["arrival_s"] for row in result["requests"]) == pytest.approx(0, abs=1e-9)
        assert "emulat" not in " ".join(result["notes"])
    assert len({result["trace"]["sha256"] for result in results.values()}) == 1
    # Each cell has a text of its own, and the turns of a session begin alike.
    prompts = [json.loads(raw)["prompt"] for fake in fakes for _, raw in fake.seen]
    assert len(prompts) == len(set(prompts)) == 48
    found = levels(results)
    page = write_pages(tmp_path, results, {"smg:x": "no <port>"}, {"rate": 12}, {OURS: "route"})
    text = page.read_text()
    assert "emulated" in text
    assert "no &lt;port&gt;" in text
    assert (tmp_path / "level-1.html").exists()
    assert found[0].gain == 0.0
    assert [row["part"] for row in as_rows(results)] == ["cell"] * 4 + ["level"]


async def test_goodput_is_judged_by_the_client(tmp_path):
    async with engines() as fakes:
        urls = [fake.url for fake in fakes]
        peer = stand_in(tmp_path)
        routers = {peer.name: partial(run_peer, peer, urls, tmp_path)}
        run = bench(fakes, routers, tmp_path, workload(isolated_s=1e-6))
        cell = Cell(1.0, 0, peer.name)
        await run.run([cell])
    result = run.store.load(cell)
    assert (result["offered"], result["completed"], result["met"]) == (7, 7, 0)


async def test_what_can_no_longer_be_in_time_is_given_up(tmp_path):
    async with engines(fault="silent") as fakes:
        urls = [fake.url for fake in fakes]
        peer = stand_in(tmp_path)
        routers = {peer.name: partial(run_peer, peer, urls, tmp_path)}
        run = bench(fakes, routers, tmp_path, workload(isolated_s=0.1))
        cell = Cell(1.0, 0, peer.name)
        await run.run([cell])
    result = run.store.load(cell)
    assert result["failed"] == result["offered"] == 7
    assert {row["error"] for row in result["requests"]} == {"interrupted"}


async def test_a_peer_that_does_not_start_is_not_measured(tmp_path):
    async with engines() as fakes:
        urls = {f"i{n}": fake.url for n, fake in enumerate(fakes)}
        broken, absent = stand_in(tmp_path, "none"), Peer("smg", "any", venvs=tmp_path)
        routers = {
            OURS: partial(gateway, urls),
            broken.name: partial(run_peer, broken, list(urls.values()), tmp_path),
            absent.name: partial(run_peer, absent, list(urls.values()), tmp_path),
        }
        run = bench(fakes, routers, tmp_path)
        cells = plan([1.0], 2, list(routers))
        await run.run(cells)
    assert "exited with status 1" in run.missing[broken.name]
    assert "no such policy" in run.missing[broken.name]
    assert "make peers" in run.missing[absent.name]
    assert [cell.router for cell in cells if run.store.load(cell)] == [OURS, OURS]


async def test_a_dead_engine_ends_the_run(tmp_path):
    async with engines() as fakes:
        fakes[1].healthy = False
        run = bench(fakes, {OURS: partial(gateway, {})}, tmp_path)
        with pytest.raises(DeployError, match="i1"):
            await run.run([Cell(1.0, 0, OURS)])


@pytest.mark.parametrize("program", SUBCOMMANDS)
async def test_real_peers_forward_what_the_trace_says(tmp_path, program):
    peer = Peer(program, "round_robin")
    if (problem := peer.problem()) is not None:
        pytest.skip(f"{program}: {problem}")
    async with engines() as fakes:
        urls = [fake.url for fake in fakes]
        run = bench(fakes, {peer.name: partial(run_peer, peer, urls, tmp_path)}, tmp_path)
        cell = Cell(1.0, 0, peer.name)
        await run.run([cell])
    assert run.missing == {}
    result = run.store.load(cell)
    assert (result["met"], result["failed"]) == (7, 0)
    assert [len(fake.seen) for fake in fakes] == [6, 6]
    rows = trace.with_text(run.workload.rows, cell.key)
    bodies = [json.loads(raw) for fake in fakes for _, raw in fake.seen]
    assert sorted(body["prompt"] for body in bodies) == sorted(row.prompt for row in rows)
    for body in bodies:
        assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (5, 5, True)
    if program == "vllm-router":
        headers = [headers for fake in fakes for headers, _ in fake.seen]
        assert {h["x-slo-e2el-ms"] for h in headers} == {"60000.0"}


async def test_a_real_peer_says_why_it_does_not_start(tmp_path):
    peer = Peer("vllm-router", "no_such_policy")
    if (problem := peer.problem()) is not None:
        pytest.skip(f"vllm-router: {problem}")
    with pytest.raises(PeerError, match="no_such_policy"):
        async with run_peer(peer, ["http://127.0.0.1:9"], tmp_path):
            pass


def test_order_of_cells():
    order = [(c.repeat, c.level, c.router) for c in plan([2, 4], 2, ["a", "b"])]
    assert order[:4] == [(0, 2, "a"), (0, 2, "b"), (0, 4, "a"), (0, 4, "b")]
    assert order[4:] == [(1, level, router) for _, level, router in order[3::-1]]
    assert len({c.key for c in plan([2, 2.5], 2, ["a:b", "a:c=1"])}) == 8


def test_made_up_text_is_as_long_as_the_trace_says():
    rows = trace.agentic_rows(0, 30.0, 4.0)
    texts = trace.with_text(rows, "one")
    assert [len(row.prompt.encode()) for row in texts] == [row.prompt_len for row in rows]
    assert [row.prompt for row in texts] != [row.prompt for row in trace.with_text(rows, "two")]
    assert texts == trace.with_text(rows, "one")
    sessions = {}
    for row in texts:
        sessions.setdefault(row.session, []).append(row.prompt)
    turns = [prompts for prompts in sessions.values() if len(prompts) > 1]
    assert turns
    for prompts in turns:
        shorter, longer = sorted(prompts[:2], key=len)
        assert longer.startswith(shorter)


def test_recorded_conversations_are_marked():
    row = TraceRow(
        arrival_s=0.0, messages=(("user", "a"), ("user", "b")), prompt_len=2, output_len=1
    )
    (one,), (two,) = trace.with_text([row], "one"), trace.with_text([row], "two")
    assert one.messages[0] != two.messages[0]
    assert one.messages[0][1].endswith(" a")
    assert one.messages[1:] == row.messages[1:]


def test_deadlines_are_multiples_of_the_second_fastest_device():
    row = TraceRow(arrival_s=3.0, prompt_len=100, output_len=11)
    (judged,) = trace.with_slo([row], 4.0, trace.isolated_time(trace.DEVICES, 2.5))
    # The A100's profile: one prefill of 100 tokens, then ten decode steps, each of one sequence.
    step_s = 0.01125 + 0.000094
    assert judged.slo.e2el_ms == pytest.approx(1e3 * 4 * 2.5 * (11 * step_s + 100 * 0.000103))
    assert last_deadline_s([judged]) == pytest.approx(3.0 + judged.slo.e2el_ms / 1e3)
    assert row.slo == SLO()


def result_of(goodput):
    return {"request_goodput": goodput}


def cells_of(level, **routers):
    return {
        Cell(level, repeat, name): result_of(value)
        for name, values in routers.items()
        for repeat, value in enumerate(values)
    }


def test_targets_by_hand():
    results = {
        **cells_of(2.5, goodput=[12.0, 12.4], a=[10.0, 10.4], b=[9.0, 9.0]),
        **cells_of(4.0, goodput=[13.0, 13.4], a=[13.2, 13.6], b=[11.0, 11.0]),
        **cells_of(7.0, goodput=[13.0, 13.0], a=[13.5, 13.5], b=[13.9, 14.1]),
    }
    found = levels(results)
    assert [level.best_peer for level in found] == ["a", "a", "b"]
    assert [level.won for level in found] == [True, True, False]
    assert [level.tied for level in found] == [False, True, False]
    won, gain = judge(found)
    assert won.value == pytest.approx(2 / 3)
    assert gain.value == pytest.approx(12.2 / 10.2 - 1)
    assert (won.met, gain.met) == (False, False)


def test_without_ours_or_peers_nothing_is_judged():
    found = levels({**cells_of(2.5, a=[1.0]), **cells_of(4.0, goodput=[1.0])})
    assert [target.value for target in judge(found)] == [None, None]


def test_store_keeps_cells_and_refuses_other_settings(tmp_path):
    store, cell = Store(tmp_path, resume=False), Cell(4.0, 0, "a:b")
    store.begin({"rate": 12.5})
    assert store.load(cell) is None
    store.save(cell, {"request_goodput": 1.0, "offered": 2})
    again = Store(tmp_path, resume=True)
    again.begin({"rate": 12.5})
    assert again.load(cell) == {"request_goodput": 1.0, "offered": 2}
    with pytest.raises(ConfigError, match=r"rate: 12\.5 kept, 13 given"):
        again.begin({"rate": 13})
    afresh = Store(tmp_path, resume=False)
    assert (afresh.load(cell), afresh.settings()) == (None, None)
    assert (tmp_path / "previous" / f"{cell.key}.json").exists()


def test_counters_of_a_cell():
    before = Counters(finished=3, steps=100, overruns=50)
    after = Counters(finished=10, steps=200, overruns=56)
    found = after.since(before)
    assert found.as_dict()["finished"] == 7
    assert found.overrun_fraction == pytest.approx(0.06)
    assert not found.valid
    assert Counters().valid


def test_peers_by_name():
    peer = parse_peer("smg:power_of_two:load-monitor-interval=2")
    assert peer.name == "smg:power_of_two:load-monitor-interval=2"
    words = peer.argv(1, 2, ["http://x"])
    assert words[1] == "launch"
    assert words[words.index("--load-monitor-interval") + 1] == "2"
    assert words[-2:] == ("--worker-urls", "http://x")
    for bad in ("smg", "smg:", "other:random", "smg:random:flag"):
        with pytest.raises(ConfigError, match="peers"):
            parse_peer(bad)


@pytest.mark.parametrize(
    "flags", [["--peers", "nothing"], ["--rate", "0"], ["--pairs", "x"], ["--levels", "-1"]]
)
def test_wrong_flags_are_named(flags, tmp_path, capsys):
    assert pool_live.main([*flags, "--out", str(tmp_path)]) == 2
    assert flags[0].removeprefix("--") in capsys.readouterr().err
    assert list(Path(tmp_path).iterdir()) == []
