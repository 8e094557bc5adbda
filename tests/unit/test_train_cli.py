# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput train` and `predict`: files, figures, mistakes and interrupts."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vllm_goodput.cli import main
from vllm_goodput.cli.output import write_whole
from vllm_goodput.cli.train import warnings
from vllm_goodput.errors import ConfigError
from vllm_goodput.predictor import store, training
from vllm_goodput.predictor.features import extract
from vllm_goodput.predictor.log import TrainingLog
from vllm_goodput.predictor.view import view_of
from vllm_goodput.router import RequestInfo

QUICK = ("--rounds", "15", "--expert-rounds", "5", "--folds", "2", "--threads", "1")
DATE = "2026-01-02T03:04:05+01:00"


def rows(count=520):
    """Answers of task `sum` are short, those of `chat` long; both grow with the prompt."""
    rng = random.Random(5)
    for i in range(count):
        task = "" if i % 13 == 0 else ("sum", "chat")[i % 2]
        words = rng.randint(1, 50)
        base = {"sum": 10, "chat": 200, "": 40}[task]
        yield {
            "task": task,
            "model": f"m{i % 3}",
            "session": f"s{i}",
            "turn": 0,
            "prompt": f"{task} {i} " + "word " * words,
            "output": "x",
            "prompt_tokens": words + 3,
            "output_tokens": 1 + int(base * words**0.5 * rng.lognormvariate(0, 0.2)),
        }


def write_rows(path, some):
    path.write_text("".join(json.dumps(row) + "\n" for row in some))
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", rows())


def train(*args):
    return main(["train", *map(str, args)])


@pytest.fixture(scope="module")
def made(pairs, tmp_path_factory):
    """A folder with model, report and card."""
    folder = tmp_path_factory.mktemp("made")
    code = train("--pairs", pairs, *QUICK, "--date", DATE, "--note", "CC0", *outputs(folder))
    assert code == 0
    return folder


def outputs(folder):
    return ["-o", folder / "m.npz", "--report", folder / "r.html", "--card", folder / "c.json"]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


# ---- train


def test_card_says_what_and_how_well(made):
    card = json.loads((made / "c.json").read_text())
    assert store.load(made / "m.npz").card == card
    assert card["date"] == "2026-01-02T02:04:05Z"
    assert card["notes"] == ["CC0"]
    data = card["data"]
    assert (data["files"], data["rows"], data["sessions"]) == (["pairs.jsonl"], 520, 520)
    assert data["tasks"] == {"chat": 240, "sum": 240, "": 40}
    assert sum(data["models"].values()) == 520
    assert card["settings"] | {"rounds": 15, "folds": 2, "expert_rounds": 5} == card["settings"]
    metrics = card["metrics"]
    assert set(metrics["tasks"]) == {"sum", "chat", "(no task)"}
    assert metrics["overall"]["rows"] == sum(task["rows"] for task in metrics["tasks"].values())
    assert metrics["overall"]["r2_log"] > 0.7
    assert 0.4 < metrics["overall"]["coverage_q50"] < 0.6
    assert 0.8 < metrics["overall"]["coverage_q90"] < 0.99
    page = (made / "r.html").read_text()
    for name in ("sum", "chat", "(no task)", "2026-01-02T02:04:05Z", "CC0"):
        assert name in page
    assert files(made) == ["c.json", "m.npz", "r.html"]


def test_same_date_and_seed_give_the_same_files(made, pairs, tmp_path, capsys):
    again = train("--pairs", pairs, *QUICK, "--date", DATE, "--note", "CC0", *outputs(tmp_path))
    assert again == 0
    for name in files(made):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes(), name
    out, err = capsys.readouterr()
    assert "all tasks" in out
    assert f"model: {tmp_path / 'm.npz'}" in out
    assert "expert chat" in err
    assert train("--pairs", pairs, *QUICK, "--seed", 1, "--date", DATE, *outputs(tmp_path)) == 0
    assert (tmp_path / "m.npz").read_bytes() != (made / "m.npz").read_bytes()


def test_pairs_and_logs_are_combined(pairs, tmp_path):
    log = TrainingLog(tmp_path / "log.jsonl", max_mb=1.0)
    for number in range(30):
        body = {"model": "m9", "prompt": f"logged {number}"}
        view = view_of(body, False, 5, None)
        info = RequestInfo(f"r{number}", 5, 0.0, task="logged", model="m9", view=view)
        log.add(info, extract([(view, None)]), 40 + number)
    log.close()
    card = tmp_path / "c.json"
    sources = ("--pairs", pairs, "--log", tmp_path / "log.jsonl")
    assert train(*sources, *QUICK, "-o", tmp_path / "m.npz", "--card", card) == 0
    data = json.loads(card.read_text())["data"]
    assert (data["rows"], data["tasks"]["logged"]) == (550, 30)
    assert data["files"] == ["pairs.jsonl", "log.jsonl"]
    assert "m9" in store.load(tmp_path / "m.npz").models


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", "not JSON"),
        ('{"task": 3}', "task must be a string"),
        ("[]", "a JSON object is expected"),
    ],
)
def test_bad_line_is_named_and_nothing_is_written(tmp_path, capsys, line, message):
    path = write_rows(tmp_path / "p.jsonl", rows(4))
    with path.open("a") as file:
        file.write(line + "\n")
    assert train("--pairs", path, *outputs(tmp_path)) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith(f"vllm-goodput: error: {path}:5: {message}")
    assert files(tmp_path) == ["p.jsonl"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give --pairs or --log"),
        (["--pairs", "PAIRS", "--folds", "1"], "--folds must be from 2 to 100, got 1"),
        (["--pairs", "PAIRS", "--learning-rate", "nan"], "--learning-rate must be from 0.0001"),
        (["--pairs", "PAIRS", "--date", "soon"], "--date must be like 2026-01-31"),
        (["--pairs", "PAIRS", "--report", "/nonexistent/r"], "cannot write /nonexistent/r"),
        (["--pairs", "PAIRS", "--card", "PAIRS"], "it is also an input or another output"),
        (["--pairs", "/nonexistent.jsonl"], "cannot read /nonexistent.jsonl"),
        (["--pairs", "FEW"], "too few to train on"),
    ],
)
def test_mistakes(pairs, tmp_path, capsys, args, message):
    few = write_rows(tmp_path / "few.jsonl", rows(5))
    args = [{"PAIRS": pairs, "FEW": few}.get(arg, arg) for arg in args]
    assert train("-o", tmp_path / "m.npz", *args) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert files(tmp_path) == ["few.jsonl"]


@pytest.mark.parametrize("moment", ["fit", "render", "save"])
def test_interrupt_leaves_what_was_there(made, pairs, tmp_path, monkeypatch, capsys, moment):
    from vllm_goodput.predictor import report

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    if moment == "fit":
        monkeypatch.setattr(training, "fit", interrupted)
    elif moment == "render":
        monkeypatch.setattr(report, "render", interrupted)
    else:
        monkeypatch.setattr(Path, "replace", interrupted)
    (tmp_path / "m.npz").write_bytes(b"old")
    assert train("--pairs", pairs, *QUICK, *outputs(tmp_path)) == 130
    assert "interrupted" in capsys.readouterr().err
    assert files(tmp_path) == ["m.npz"]
    assert (tmp_path / "m.npz").read_bytes() == b"old"


def test_ctrl_c_in_the_middle_of_training(pairs, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm_goodput.cli", "train", "--pairs", pairs, "--rounds", "10000"]
        + [str(arg) for arg in ("--threads", 1, *outputs(tmp_path))],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        for line in process.stderr:
            if "general expert" in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.endswith("vllm-goodput: interrupted\n")
    assert err.count("\n") == 1  # and nothing of what was interrupted
    assert out == ""
    assert files(tmp_path) == []


CALLBACK = """
import ctypes, signal
from vllm_goodput.cli.interrupts import exit_on_interrupt
before = signal.getsignal(signal.SIGINT)
with exit_on_interrupt():
    pass
assert signal.getsignal(signal.SIGINT) is before
with exit_on_interrupt():
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))()
    print("the library goes on")
"""


def test_interrupt_in_a_native_callback():
    done = subprocess.run(
        [sys.executable, "-c", CALLBACK], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "vllm-goodput: interrupted\n"


def test_help_names_units_and_defaults(capsys):
    for command in ("train", "predict"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("(default: model.npz)", "(default: 200)", "tokens", "0 is one per core"):
        assert part in text


def test_every_setting_has_a_flag():
    from dataclasses import fields

    from vllm_goodput.cli.train import SETTINGS

    for field in fields(training.TrainSettings):
        low, high, _ = SETTINGS[field.name]
        assert low <= field.default <= high


def test_write_whole(tmp_path):
    write_whole(tmp_path / "a", b"1")
    write_whole(tmp_path / "a", b"22")
    assert (tmp_path / "a").read_bytes() == b"22"
    with pytest.raises(ConfigError, match="cannot write"):
        write_whole(tmp_path / "none" / "a", b"")
    assert files(tmp_path) == ["a"]


# ---- predict


@pytest.fixture
def predict(made, monkeypatch, capfdbinary):
    def _predict(*args, stdin=b"", code=0):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        capfdbinary.readouterr()
        assert main(["predict", "--model", str(made / "m.npz"), *map(str, args)]) == code
        out, err = capfdbinary.readouterr()
        return out.decode() if code == 0 else err.decode()

    return _predict


def test_prompt_text(predict):
    short = json.loads(predict("--prompt", "sum 3 " + "word " * 9, "--json", "--llm", "m1"))
    long = json.loads(predict("--prompt", "chat 3 " + "word " * 9, "--json", "--llm", "m1"))
    assert short["model"] == "m1"
    assert short["prompt_len"] == round(len("sum 3 " + "word " * 9) / 4)
    assert long["quantiles"]["0.5"] > 3 * short["quantiles"]["0.5"]
    for found in (short, long):
        quantiles = list(found["quantiles"].values())
        assert quantiles == sorted(quantiles)
        assert sum(found["experts"].values()) == pytest.approx(1.0, abs=0.01)
    assert short["experts"].get("sum", 0) > short["experts"].get("chat", 0)


def test_bodies_and_flags_over_them(predict, tmp_path):
    chat = {
        "model": "m0",
        "messages": [{"role": "user", "content": "word word"}],
        "max_completion_tokens": 7,
        "vllm_xargs": {"task": "chat"},
    }
    path = tmp_path / "b.json"
    path.write_text(json.dumps(chat))
    found = json.loads(predict("--body", path, "--json"))
    assert (found["model"], found["task"], found["max_tokens"]) == ("m0", "chat", 7)
    assert set(found["experts"]) <= {"chat", "(general)"}
    assert max(found["quantiles"].values()) == 7
    same = json.loads(predict("--chat-body", "-", "--json", stdin=path.read_bytes()))
    assert same == found
    flags = ("--task", "sum", "--max-tokens", 100_000, "--prompt-len", 55, "--quantiles", 0.3, 0.5)
    over = json.loads(predict("--body", path, "--json", *flags))
    assert (over["task"], over["prompt_len"], over["max_tokens"]) == ("sum", 55, 100_000)
    assert list(over["quantiles"]) == ["0.3", "0.5"]


def test_what_is_left(predict):
    args = ("--prompt", "chat 1 word word", "--json", "--quantiles", 0.5, "--generated")
    plain = json.loads(predict(*args, 1))["quantiles"]["0.5"]
    left = [json.loads(predict(*args, n))["remaining"]["0.5"] for n in (1, 50, 100_000)]
    assert left[0] == pytest.approx(plain - 1, rel=0.01)
    assert left[1] + 50 >= plain - 0.2
    assert left[2] >= 1


def test_batch_keeps_order_and_agrees_with_single_requests(predict):
    bodies = [
        {"prompt": f"{t} {i} word", "model": "m1"} for i, t in enumerate(("sum", "chat") * 300)
    ]
    lines = b"\n".join(json.dumps(body).encode() for body in bodies) + b"\n\n"
    found = [json.loads(line) for line in predict("--batch", "-", stdin=lines).splitlines()]
    assert len(found) == len(bodies)
    for number in (0, 1, 511, 512, 599):
        assert found[number] == json.loads(
            predict("--body", "-", "--json", stdin=json.dumps(bodies[number]).encode())
        )


def test_table_and_card(predict, made):
    text = predict("--prompt", "-", "--generated", 20, stdin=b"sum 1 word")
    for part in (
        "q0.5",
        "output tokens",
        "left after 20",
        "(general)",
        "prompt: about 2 tokens",
        "a model not named",
    ):
        assert part in text
    assert json.loads(predict("--card")) == json.loads((made / "c.json").read_text())


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        (["--body", "-"], b"{", "standard input: not JSON"),
        (["--body", "-"], b"{}", "a request body with messages or prompt is expected"),
        (["--batch", "-"], b'{"prompt": "x"}\n7\n', "standard input:2: a request body"),
        (["--body", "/nonexistent"], b"", "cannot read /nonexistent"),
        (["--prompt", "x", "--quantiles", "1"], b"", "--quantiles must lie between 0 and 1"),
        (
            ["--prompt", "x", "--generated", "-1"],
            b"",
            "--generated must be from 0 to 1000000000, got -1",
        ),
        (["--prompt", "x", "--max-tokens", "5", "--generated", "6"], b"", "at most max_tokens (5)"),
        (["--body", "-"], b'{"messages": 5}', "messages must be a list of objects"),
        (["--body", "-"], b'{"messages": [5]}', "messages must be a list of objects"),
        (["--body", "-"], b'{"prompt": null}', "prompt must be text or token ids"),
        (["--prompt", "x", "--model", "/nonexistent"], b"", "/nonexistent"),
    ],
)
def test_mistakes_of_predict(predict, args, stdin, message):
    err = predict(*args, stdin=stdin, code=2)
    assert message in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_what_is_malformed_otherwise_counts_as_absent(predict):
    for body in ({"messages": []}, {"prompt": [[]]}, {"prompt": "", "model": 7, "vllm_xargs": 3}):
        found = json.loads(predict("--body", "-", "--json", stdin=json.dumps(body).encode()))
        assert found["quantiles"]["0.5"] >= 1


def test_names_are_never_markup(predict):
    assert "'[/nope]'" in predict("--prompt", "x", "--llm", "[/nope]")


def test_tasks_without_an_expert_are_named(tmp_path, capsys):
    odd = write_rows(tmp_path / "p.jsonl", [*rows(), {**next(iter(rows())), "task": "[/x]"}])
    assert train("--pairs", odd, *QUICK, "-o", tmp_path / "m.npz") == 0
    assert "[/x] (1)" in capsys.readouterr().err.replace("\n", " ")


def test_inputs_and_special_files_are_not_written_over(pairs, tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    for output in (tmp_path / "fifo", pairs):
        assert train("--pairs", pairs.parent, *QUICK, "-o", output) == 2
        assert "cannot write" in capsys.readouterr().err
    assert len(pairs.read_text().splitlines()) == 520
    log = tmp_path / "finished.jsonl"
    assert train("--log", log, "-o", f"{log}.1") == 2
    assert "also an input" in capsys.readouterr().err


def test_a_useless_model_says_so():
    scores = SimpleNamespace(mae_tokens=30.0, baseline_mae_tokens=20.0)
    data = SimpleNamespace(task=np.array(["t"] * 30))
    model = SimpleNamespace(gate=SimpleNamespace(tasks=["t"]))
    (warning,) = warnings(data, model, SimpleNamespace(overall=lambda: scores))
    assert "off by 30.0 tokens on average, predicting each task's mean by 20.0" in warning
    scores.mae_tokens = 10.0
    assert not list(warnings(data, model, SimpleNamespace(overall=lambda: scores)))
