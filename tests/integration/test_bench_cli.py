# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput bench` as a process of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from tests.integration.test_bench_replay import FakeServer
from vllm_goodput.bench import Record
from vllm_goodput.bench.progress import ReplayProgress


@pytest.fixture
async def server():
    async with FakeServer() as fake:
        yield fake


@pytest.fixture
def trace(tmp_path):
    def _write(*rows, name="trace.jsonl"):
        path = tmp_path / name
        common = {"prompt_len": 8, "output_len": 3}
        path.write_text("".join(json.dumps(common | row) + "\n" for row in rows))
        return path

    return _write


async def start(*args, **env):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "vllm_goodput.cli",
        "bench",
        *map(str, args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "160", "OPENAI_API_KEY": "", **env},
    )


async def bench(*args, **env):
    process = await start(*args, **env)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), err.decode()


async def test_run_writes_json_and_html(server, trace, tmp_path):
    server.pool = {"notes": ["emulated devices: H100"]}
    path = trace({"arrival_s": 0}, {"arrival_s": 0.1, "task": "infeasible"}, {"arrival_s": 0.2})
    json_path, html_path = tmp_path / "r.json", tmp_path / "r.html"
    code, out, err = await bench(
        "run", path, "--url", server.url, "--goodput", "e2el:20000", "--json", json_path,
        "--html", html_path, "--header", "X-Token=hush", "--note", "mine",
        OPENAI_API_KEY="secret-key",
    )  # fmt: skip
    assert code == 0, err
    assert "emulated devices: H100" in out
    result = json.loads(json_path.read_text())
    assert (result["offered"], result["met"], result["rejected"]) == (3, 2, {"infeasible": 1})
    assert result["request_goodput"] == pytest.approx(2 / 0.2)
    assert result["notes"] == ["mine", "emulated devices: H100"]
    assert result["trace"]["rows"] == 3
    assert [row["outcome"] for row in result["requests"]] == ["met", "rejected", "met"]
    assert "By task" in html_path.read_text()
    assert server.headers[0]["Authorization"] == "Bearer secret-key"
    everything = json_path.read_text() + html_path.read_text() + out + err
    assert "secret-key" not in everything
    assert "hush" not in everything


async def test_json_to_stdout_without_requests(server, trace):
    code, out, err = await bench(
        "run", trace({"arrival_s": 0}), "--url", server.url, "--json", "-", "--no-requests",
        "--no-stream", "--no-ignore-eos", "--endpoint", "chat", "--model", "m",
    )  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    assert "requests" not in result
    assert result["settings"]["model"] == "m"
    assert "Goodput (req/s)" in err
    assert "min_tokens" not in server.bodies[0]


async def test_interrupt_writes_the_report(server, trace, tmp_path):
    path = trace({"arrival_s": 0, "task": "hang"}, {"arrival_s": 3600})
    json_path, html_path = tmp_path / "r.json", tmp_path / "r.html"
    process = await start(
        "run", path, "--url", server.url, "--json", json_path, "--html", html_path
    )
    await asyncio.wait_for(server.arrived.wait(), 20)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 130, err
    result = json.loads(json_path.read_text())
    assert result["interrupted"] is True
    assert (result["offered"], result["failed"]) == (1, 1)
    assert "interrupted" in out.decode()
    assert html_path.exists()
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("http500", "HTTP 500: boom"),
        ("vocabulary", "HTTP 400: Token id 994 is out of vocabulary; lower --vocab-size"),
    ],
)
async def test_every_request_failing_is_an_error(server, trace, task, message):
    code, _, err = await bench("run", trace({"arrival_s": 0, "task": task}), "--url", server.url)
    assert code == 1
    assert f"every request failed: {message}\n" in err


async def test_unreachable_endpoint_is_one_line(trace):
    code, out, err = await bench("run", trace({"arrival_s": 0}), "--url", "http://127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err.startswith("vllm-goodput: error: cannot reach http://127.0.0.1:1: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--goodput", "e2e:5"], "--goodput: expected METRIC:MILLISECONDS"),
        (["--extra-body", "[1]"], "--extra-body: expected a JSON object, got '[1]'"),
        (["--extra-body", "{"], "--extra-body: not JSON"),
        (["--header", "novalue"], "--header: expected KEY=VALUE, got 'novalue'"),
        (["--url", "ftp://x"], "url must be http(s)"),
        (["--limit", "0"], "limit must be at least 1, got 0"),
        (["--start-s", "50"], "no row arrives"),
        (["--json", "/nonexistent/r.json"], "cannot write /nonexistent/r.json"),
        (["--format", "azure"], "no column 'TIMESTAMP'"),
    ],
)
def test_bad_input_of_run(trace, capsys, args, message):
    from vllm_goodput.cli import main

    assert main(["bench", "run", str(trace({"arrival_s": 0})), *args]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


async def test_malformed_trace_in_a_process(trace):
    path = trace({"arrival_s": 0}, {"arrival_s": "soon"})
    code, out, err = await bench("run", path)
    assert (code, out) == (2, "")
    assert err == f"vllm-goodput: error: {path}:2: arrival_s must be a number, got 'soon'\n"


async def test_generate_then_run_then_compare(server, tmp_path):
    path = tmp_path / "t.jsonl"
    code, out, err = await bench(
        "generate", "-o", path, "--duration-s", 20, "--rate", 2, "--seed", 1, "--mix", "math=1",
        "code_gen=2", "--max-prompt-len", 64, "--max-output-len", 8, "--slo-scale", 4,
    )  # fmt: skip
    assert code == 0, err
    results = [tmp_path / "round_robin.json", tmp_path / "goodput.json"]
    for result in results:
        code, _, err = await bench(
            "run", path, "--url", server.url, "--time-scale", 0.05, "--json", result
        )
        assert code == 0, err
    html = tmp_path / "c.html"
    code, out, err = await bench("compare", *results, "--baseline", "goodput", "--html", html)
    assert code == 0, err
    assert "round_robin" in out
    assert "code_gen" in out
    assert "baseline goodput" in html.read_text()
    code, out, _ = await bench("compare", *results, "--json", "-")
    assert json.loads(out)["baseline"] == "round_robin"


def test_bad_input_of_generate_and_compare(tmp_path, capsys):
    from vllm_goodput.cli import main

    trace = str(tmp_path / "t.jsonl")
    assert main(["bench", "generate", "-o", trace, "--mix", "math=x"]) == 2
    assert main(["bench", "generate", "-o", trace, "--rate", "-1"]) == 2
    assert main(["bench", "generate", "-o", str(tmp_path)]) == 2
    assert main(["bench", "compare", str(tmp_path / "none.json")]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 4
    assert "the weight of math must be a number, got 'x'" in err[0]


def test_help_names_every_action_and_defaults(capsys):
    from vllm_goodput.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["bench", "run", "--help"])
    assert ended.value.code == 0
    assert "(default: 600.0)" in capsys.readouterr().out


async def progress_text(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160)
    async with ReplayProgress(4, console, line_period_s=0.01) as progress:
        for _ in range(3):
            progress.sent()
        progress.done(
            Record(index=0, arrival_s=0.0, prompt_len=1, output_len=1, completed=True, e2el_s=1.0)
        )
        await asyncio.sleep(0.05)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
async def test_progress(terminal):
    assert "sent 3/4  done 1  met 1  rejected 0  failed 0" in await progress_text(terminal)


def test_outputs_never_overwrite_an_input_or_each_other(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"arrival_s": 0, "prompt_len": 3, "output_len": 2}\n')
    before = trace.read_text()
    for flags in (["--json", str(trace)], ["--json", f"{trace}.o", "--html", f"{trace}.o"]):
        done = subprocess.run(
            [sys.executable, "-m", "vllm_goodput.cli", "bench", "run", str(trace), *flags],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert "also an input or another output" in done.stderr
    assert trace.read_text() == before
