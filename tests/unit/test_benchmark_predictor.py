# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The comparison of length predictors, on small sets of pairs made in code."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import orjson
import pytest
from rich.console import Console

from benchmarks import predictor as benchmark
from benchmarks import predictor_baselines as baselines
from benchmarks import predictor_parts as parts
from benchmarks.predictor_data import Pairs, read
from benchmarks.predictor_scores import Forecast, cut, repeated_inputs, scores
from benchmarks.predictor_tables import tables
from vllm_goodput.predictor.features import extract
from vllm_goodput.predictor.sessions import Sessions
from vllm_goodput.predictor.training import LEVELS, TrainSettings, folds_of

TINY = TrainSettings(folds=2, rounds=4, learning_rate=0.5, expert_rounds=2, threads=1)
PLAN = parts.Plan(
    share=1.0,
    folds=2,
    settings=TINY,
    light=TINY,
    light_share=0.5,
    left_out=1,
    curve=(0.5,),
    rounds=1,
)
WORDS = {"short": 1.0, "medium": 3.0, "long": 5.0}


def write_pairs(path: Path, sessions: int = 150) -> Path:
    """Two tasks by two models in sessions of two turns; the length follows from a word of the prompt."""
    rng = random.Random(0)
    lines = []
    for session in range(sessions):
        task, model = rng.choice(["alpha", "beta"]), rng.choice(["one", "two"])
        for turn in range(2):
            word = rng.choice(list(WORDS))
            log_len = WORDS[word] + (task == "beta") + rng.gauss(0, 0.3)
            lines.append(
                {
                    "task": task,
                    "model": model,
                    "session": f"s{session}",
                    "turn": turn,
                    "prompt": f"a {word} answer to {task} {rng.randrange(60)}, please",
                    "output": "well " * 5,
                    "prompt_kind": "delta",
                    "prompt_tokens": 9 * (turn + 1),
                    "output_tokens": max(1, round(math.exp(log_len))),
                }
            )
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return read(write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.jsonl")).shuffled(1)


def test_requests_and_examples_are_the_same_rows(pairs: Pairs) -> None:
    """Views and sessions, replayed, give the very features that training sees."""
    examples = pairs.examples
    sessions = Sessions()
    for row, info in enumerate(pairs.infos):
        assert (info.task, info.model) == (examples.task[row], examples.model[row])
        assert info.view is not None
        features = extract([(info.view, sessions.get(info.session))])
        np.testing.assert_array_equal(features.dense[0], examples.features.dense[row])
        begin, end = examples.features.ends[row : row + 2]
        np.testing.assert_array_equal(features.indices, examples.features.indices[begin:end])
        sessions.add(info.session, info.prompt_len, int(examples.output_len[row]))


def test_shuffling_keeps_sessions_together_and_turns_in_order(pairs: Pairs) -> None:
    session = pairs.examples.session
    assert np.count_nonzero(np.diff(session)) == len(np.unique(session)) - 1
    turn = [info.view.turn for info in pairs.infos if info.view is not None]
    assert turn == [0, 1] * (len(pairs) // 2)
    assert not np.array_equal(session, np.sort(session))


def test_shares_keep_groups_whole_and_nest(pairs: Pairs) -> None:
    small, large = (set(pairs.share(s, 0).examples.group.tolist()) for s in (0.25, 0.5))
    everything = set(pairs.examples.group.tolist())
    assert small < large < everything
    assert len(large) == pytest.approx(len(everything) / 2, abs=1)
    assert len(pairs.share(1.0, 0)) == len(pairs)


def test_folds_share_no_group_and_cover_all_rows(pairs: Pairs) -> None:
    train, test = parts.split(pairs, 0, seed=0)
    assert not set(train.examples.group) & set(test.examples.group)
    everything = parts.in_folds(pairs, parts.FOLDS, seed=0)
    assert sorted(i.request_id for i in everything.infos) == sorted(
        i.request_id for i in pairs.infos
    )
    fold = folds_of(pairs.examples.group, parts.FOLDS, 0)
    assert [i.request_id for i in everything.infos[: len(test)]] == [
        pairs.infos[row].request_id for row in np.flatnonzero(fold == 0)
    ]


def test_constant_explains_nothing_and_covers_what_it_states(pairs: Pairs) -> None:
    examples = pairs.examples
    found = scores(examples.log_len, baselines.constant(examples, examples))
    assert found["r2_log_len"] == pytest.approx(0.0, abs=1e-9)
    assert found["coverage_q50"] == pytest.approx(0.5, abs=0.03)
    assert found["coverage_q90"] == pytest.approx(0.9, abs=0.03)
    median = np.median(examples.output_len)
    assert found["mae_tokens"] == pytest.approx(
        np.mean(np.abs(examples.output_len - median)), rel=0.02
    )


def test_oracle_is_perfect(pairs: Pairs) -> None:
    found = scores(pairs.examples.log_len, baselines.oracle(pairs.examples))
    assert found["r2_log_len"] == 1.0
    assert found["pinball"] == found["pinball_q90"] == 0.0
    assert found["mae_tokens"] == pytest.approx(0.0, abs=1e-9)
    assert found["coverage_q50"] == found["coverage_q90"] == 1.0


def test_task_mean_says_the_mean_and_its_twin_the_median(pairs: Pairs) -> None:
    examples = pairs.examples
    mean = baselines.task_mean(examples, examples)
    own = examples.task == "alpha"
    assert mean.tokens[own] == pytest.approx(examples.output_len[own].mean())
    assert mean.mean[own] == pytest.approx(examples.log_len[own].mean())
    median = np.median(examples.log_len[own])
    assert baselines.task_median(mean).tokens[own] == pytest.approx(np.exp(median))
    # A task that was not trained on gets what all rows say.
    strange = baselines.task_mean(examples.take(own), examples.take(~own))
    assert strange.tokens == pytest.approx(examples.output_len[own].mean())


def test_scores_by_hand() -> None:
    log_len = np.log([10.0, 20.0])
    quantiles = np.log(np.full((2, len(LEVELS)), 15.0))
    found = scores(log_len, Forecast.of(quantiles))
    assert found["rows"] == 2
    assert found["mae_tokens"] == pytest.approx(5.0)
    assert found["pinball_q90_tokens"] == pytest.approx((0.1 * 5 + 0.9 * 5) / 2)
    assert found["coverage_q90"] == 0.5
    assert cut(3.0, 4.0) == 0.25
    assert math.isnan(cut(0.0, 0.0))


def test_histogram_predicts_before_it_learns(pairs: Pairs) -> None:
    forecast = baselines.running_histogram(None, pairs)
    # The first request is met with the initial guess, a median of 256 tokens.
    assert forecast.tokens[0] == pytest.approx(256, rel=0.1)
    after = scores(pairs.examples.log_len[100:], forecast.take(np.arange(100, len(pairs))))
    assert after["coverage_q90"] == pytest.approx(0.9, abs=0.08)


def test_bound_of_repeated_inputs_by_hand() -> None:
    log_len = np.array([1.0, 3.0, 6.0, 8.0, 100.0])
    rows, bound = repeated_inputs(log_len, np.array([7, 7, 9, 9, 1]))
    assert rows.tolist() == [0, 1, 2, 3]
    # Within: 2 + 2 over two degrees of freedom; in all: variance 7.25.
    assert bound == pytest.approx(1 - 2.0 / 7.25)
    assert math.isnan(repeated_inputs(log_len, np.arange(5))[1])


def test_inputs_are_equal_only_for_one_model_and_one_history(tmp_path: Path) -> None:
    def row(session: str, turn: int, prompt: str, output: str, model: str = "m") -> bytes:
        kind = {"prompt_kind": "delta", "prompt_tokens": 5, "output_tokens": 5, "task": "t"}
        return orjson.dumps(
            {"session": session, "turn": turn, "prompt": prompt, "output": output, "model": model}
            | kind
        )

    lines = [
        *(row("a", 0, "hello", "x"), row("a", 1, "more", "")),
        *(row("b", 0, "hello", "x"), row("b", 1, "more", "")),
        *(row("c", 0, "hello", "y"), row("c", 1, "more", "")),
        row("d", 0, "hello", "x", model="other"),
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b"\n".join(lines))
    assert read(path).inputs.tolist() == [0, 1, 0, 1, 0, 2, 3]


def test_everything_runs_and_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "QUICK", PLAN)
    monkeypatch.setattr(parts, "MIN_ROWS", 100)
    pairs = write_pairs(tmp_path / "pairs.jsonl")
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    flags = ["--quick", "--pairs", str(pairs), "--json", str(out), "--html", str(page)]
    assert benchmark.main(flags) == 0
    printed = capsys.readouterr()
    assert "quick:" in printed.out
    assert "unseen task" in printed.err
    assert "MoE online" in page.read_text()
    data = orjson.loads(out.read_bytes())
    assert data["settings"]["quick"] is True
    overall = {
        r["method"]: r for r in data["results"] if r["part"] == "held out" and r["task"] is None
    }
    assert overall["oracle"]["pinball"] == 0.0
    assert abs(overall["constant"]["r2_log_len"]) < 0.05
    assert overall["global XGBoost"]["r2_log_len"] > 0.5
    # Even a few trees read the word that decides.
    assert overall["MoE"]["pinball"] < overall["per-task mean"]["pinball"]
    assert len({r["rows"] for r in overall.values()}) == 1
    assert {r["kind"] for r in data["results"] if r["part"] == "unseen"} == {"task", "model"}
    # No task has as many held-out rows as its target asks for.
    open_targets = [t["name"] for t in data["targets"] if t["met"] is None]
    assert open_targets == ["q90_coverage_error_per_task"]


def test_skipped_parts_are_not_judged(pairs: Pairs) -> None:
    skip = benchmark.SKIPPABLE
    results = benchmark.run(pairs, PLAN, 0, skip, Console(quiet=True))
    targets = benchmark.judge(results)
    assert {t.name for t in targets if t.value is None} >= {
        "pinball_q90_cut_vs_global",
        "single_p50_us",
        "batch64_us",
        "unseen_task_vs_histogram",
        "unseen_model_vs_histogram",
    }
    assert len([*tables(results, targets)]) == 4


def test_missing_pairs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["--quick", "--pairs", str(tmp_path / "none")]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "does not exist" in printed
    assert "--pairs" in printed
