# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Training and what comes of it: the gate, calibration, model files, and corrections by finished requests."""

from __future__ import annotations

import contextlib
import io
import math
import os
from dataclasses import replace

import numpy as np
import orjson
import pytest

from vllm_goodput.errors import DataError
from vllm_goodput.predictor import store, training
from vllm_goodput.predictor.dataset import Examples, concat, read_pairs
from vllm_goodput.predictor.features import extract
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.metrics import coverage, mean_of, pinball, r2
from vllm_goodput.predictor.sessions import SessionLengths
from vllm_goodput.predictor.training import LEVELS, TrainSettings, fit, folds_of
from vllm_goodput.predictor.view import RequestView
from vllm_goodput.router import RequestInfo
from vllm_goodput.slo import MAX_LABEL_LEN

SETTINGS = TrainSettings(rounds=60, expert_rounds=30, folds=3, threads=1)
NOUNS = {"sql": ["table", "column", "join"], "story": ["dragon", "forest", "queen"]}
Q90 = LEVELS.tolist().index(0.9)
Q50 = LEVELS.tolist().index(0.5)


def pairs(count=1200, seed=0):
    """Task `sql` answers shortly, `story` at length, both longer the more words are asked for."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        task = ("sql", "story")[i % 2]
        words = int(rng.integers(1, 9))
        prompt = " ".join(rng.choice(NOUNS[task], words)) + f" number {10_000 * seed + i}"
        base = {"sql": 10, "story": 200}[task] * words
        yield {
            "task": task,
            "model": ("small", "large")[i // 2 % 2],
            "session": f"{task}{i}",
            "turn": 0,
            "prompt": prompt,
            "prompt_tokens": words + 2,
            "output_tokens": max(1, round(base * math.exp(0.2 * rng.normal()))),
        }


def write(path, rows):
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows) + b"\n")
    return path


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Examples:
    return read_pairs([write(tmp_path_factory.mktemp("pairs") / "a.jsonl", pairs())])


@pytest.fixture(scope="module")
def trained(examples):
    return fit(examples, SETTINGS)


def info(prompt="table join", task=None, model="small", session=None, **fields):
    view = RequestView(
        model=model, prompt_len=len(prompt.split()), last=prompt, last_chars=len(prompt)
    )
    return RequestInfo("r", view.prompt_len, 0.0, task=task, session=session, view=view, **fields)


class TestExamples:
    def test_sessions_with_the_same_first_prompt_share_a_group(self, tmp_path):
        rows = [
            {"task": "t", "model": m, "session": s, "turn": turn, "prompt": p, "prompt_kind": "delta",
             "prompt_tokens": 5, "output_tokens": 7, "output": "out"}
            for m, s, turn, p in [
                ("a", "1", 1, "then"), ("a", "1", 0, "The  Question"), ("b", "2", 0, "the question"),
                ("b", "3", 0, "another"),
            ]
        ]  # fmt: skip
        got = read_pairs([write(tmp_path / "p.jsonl", rows)])
        groups = {m + str(s): g for m, s, g in zip(got.model, got.session, got.group, strict=True)}
        assert groups["a0"] == groups["b1"] != groups["b2"]
        assert len(got) == 4

    def test_turns_see_what_came_before_them_only(self, tmp_path):
        rows = [
            {"task": "t", "model": "a", "session": "1", "turn": turn, "prompt": f"p{turn}",
             "prompt_kind": "delta", "prompt_tokens": 5, "output_tokens": 10 ** (turn + 1), "output": "out"}
            for turn in range(3)
        ]  # fmt: skip
        from vllm_goodput.predictor.features import NUMBERS

        dense = read_pairs([write(tmp_path / "p.jsonl", rows)]).features.dense
        at = NUMBERS.index("log length -1")
        assert math.isnan(dense[0, at])
        assert np.exp(dense[1:, at]) == pytest.approx([10, 100])

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"{", "not JSON"),
            (b"[]", "JSON object"),
            (b'{"task": 3}', "task must be a string"),
            (b'{"task": "t", "model": "m", "prompt": "p", "turn": "x"}', "turn must be"),
            (b'{"task": "t", "model": "m", "prompt": "p", "prompt_tokens": -1}', "prompt_tokens"),
        ],
    )
    def test_bad_lines_are_named(self, tmp_path, line, message):
        path = tmp_path / "p.jsonl"
        path.write_bytes(orjson.dumps(next(pairs())) + b"\n" + line + b"\n")
        with pytest.raises(DataError, match=rf"p\.jsonl:2: .*{message}"):
            read_pairs([path])

    def test_take_and_concat_are_inverse(self, examples):
        half = len(examples) // 2
        rows = np.arange(len(examples))
        both = concat([examples.take(rows[:half]), examples.take(rows[half:])])
        assert (both.features.indices == examples.features.indices).all()
        assert (both.features.ends == examples.features.ends).all()
        assert np.array_equal(both.features.dense, examples.features.dense, equal_nan=True)
        assert (both.output_len == examples.output_len).all()

    def test_folds_keep_groups_whole(self, examples):
        fold = folds_of(examples.group, 4, 0)
        for group in np.unique(examples.group):
            assert len(set(fold[examples.group == group])) == 1
        assert set(fold) == {0, 1, 2, 3}


class TestModel:
    def test_it_learns(self, trained, tmp_path):
        test = read_pairs([write(tmp_path / "t.jsonl", pairs(400, seed=9))])
        quantiles, _ = trained.model.predict(test.features, test.model, test.task)
        assert (np.diff(quantiles, axis=1) >= 0).all()
        # Noise of sigma 0.2 leaves about 0.98 of the variance to be explained.
        assert r2(test.log_len, mean_of(quantiles, LEVELS)) > 0.93
        assert coverage(test.log_len, quantiles[:, Q90]) == pytest.approx(0.9, abs=0.06)

    def test_same_seed_same_bytes(self, examples, trained):
        assert store.dump(fit(examples, SETTINGS)) == store.dump(trained)
        assert store.dump(fit(examples, replace(SETTINGS, seed=1))) != store.dump(trained)

    def test_gate_follows_the_text_and_the_declaration(self, trained):
        predictor = MoEPredictor(trained.model)
        tasks = trained.model.gate.tasks

        def weights(**request):
            asked = info(**request)
            features = extract([(asked.view, None)])
            _, got = trained.model.predict(features, ["small"], [asked.task])
            assert got.sum() == pytest.approx(1)
            return dict(zip([*tasks, "general"], got[0].tolist(), strict=True))

        sql = weights(prompt="table column join table number 5")
        assert sql["sql"] > 10 * sql["story"]
        declared = weights(prompt="table column join table number 5", task="story")
        assert declared["sql"] == 0
        assert declared["story"] == pytest.approx(trained.model.gate.declared[tasks.index("story")])
        strange = weights(prompt="xylophone 99 ??? quux zebra 42 %% wholly other words here")
        assert strange["general"] > 0.7
        unknown = weights(prompt="table column join table number 5", task="never seen")
        assert unknown == pytest.approx(sql)
        long = predictor.predict(info(prompt="dragon forest queen dragon number 7", task="story"))
        short = predictor.predict(info(prompt="table column join table number 5", task="sql"))
        assert long.quantile(0.5) > 5 * short.quantile(0.5)

    def test_a_task_of_one_session_has_no_expert(self, tmp_path):
        session = [
            {**row, "task": "agent", "session": "one", "turn": turn, "prompt": f"turn {turn}"}
            for turn, row in enumerate(pairs(40, seed=3))
        ]
        data = read_pairs([write(tmp_path / "p.jsonl", [*pairs(300), *session])])
        assert fit(data, SETTINGS).model.gate.tasks == ["sql", "story"]

    def test_the_number_of_experts_is_bounded(self, examples, monkeypatch):
        monkeypatch.setattr(training, "MAX_TASKS", 1)
        assert len(fit(examples, SETTINGS).model.gate.tasks) == 1

    def test_too_few_examples(self, examples):
        with pytest.raises(DataError, match="too few"):
            fit(examples.take(np.arange(4)), SETTINGS)

    def test_predictions_do_not_depend_on_the_batch(self, trained):
        predictor = MoEPredictor(trained.model)
        asked = [
            info(prompt=f"table join {i}", task=("sql", None, "other")[i % 3]) for i in range(9)
        ]
        together = predictor.predict_batch(asked)
        for one, request in zip(together, asked, strict=True):
            assert predictor.predict(request).quantile(0.9) == pytest.approx(
                one.quantile(0.9), rel=1e-5
            )
        assert predictor.predict_batch([]) == []


class TestFiles:
    def test_round_trip(self, trained, examples, tmp_path):
        path = tmp_path / "deep" / "m.npz"
        store.save(path, trained)
        again = store.load(path)
        some = examples.take(np.arange(50))
        expected = trained.model.predict(some.features, some.model, some.task)
        got = again.predict(some.features, some.model, some.task)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert [p.name for p in path.parent.iterdir()] == ["m.npz"]

    def test_missing(self, tmp_path):
        with pytest.raises(DataError, match=r"cannot read the model .*none\.npz"):
            store.load(tmp_path / "none.npz")

    def test_any_damage_is_an_error_with_the_name(self, trained, tmp_path):
        data = store.dump(trained)
        rng = np.random.default_rng(0)
        path = tmp_path / "m.npz"
        whole = store.parse(data, "whole")
        for cut in [0, 1, 100, len(data) // 2, len(data) - 1]:
            path.write_bytes(data[:cut])
            with pytest.raises(DataError, match=r"m\.npz"):
                store.load(path)
        for _ in range(60):
            broken = bytearray(data)
            broken[rng.integers(len(data))] ^= 1 << rng.integers(8)
            path.write_bytes(broken)
            got = None
            with contextlib.suppress(DataError):
                got = store.load(path)
            # A bit that nothing depends on, such as a time stamp, may pass.
            assert got is None or got.models == whole.models

    def test_another_feature_version(self, trained, monkeypatch):
        data = store.dump(trained)
        monkeypatch.setattr(store, "FEATURE_VERSION", 99)
        with pytest.raises(
            DataError, match=r"m.npz was trained for feature version 1 .* this is version 99"
        ):
            store.parse(data, "m.npz")


def changed(data, **changes):
    """A model file with some arrays changed."""
    with np.load(io.BytesIO(data)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, change in changes.items():
        arrays[name] = change(arrays[name])
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


class TestHostileFiles:
    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("levels", lambda a: np.full_like(a, 0.5)),
            ("levels", lambda a: a[::-1]),
            ("levels", lambda a: a * 2),
            ("levels", lambda a: a.astype(complex)),
            ("levels", lambda a: a > 0.5),
            ("2_base", lambda a: np.full_like(a, np.nan)),
            ("2_base", lambda a: np.full_like(a, np.inf)),
            ("2_leaves", lambda a: np.full_like(a, np.nan)),
            ("0_threshold", lambda a: np.full_like(a, np.nan)),
            ("2_left", lambda a: np.zeros_like(a)),
            ("0_roots", lambda a: a - 1),
            ("gate_heads", lambda a: a.astype(float)),
            ("gate_heads", lambda a: a + 1000),
            ("gate_slope", lambda a: a[:1]),
            ("meta", lambda a: a[:-1]),
        ],
    )
    def test_are_refused(self, trained, name, change):
        with pytest.raises(DataError, match="hostile"):
            store.parse(changed(store.dump(trained), **{name: change}), "hostile")

    @pytest.mark.parametrize("value", [800.0, -800.0, 3e38])
    def test_absurd_predictions_stay_lengths(self, trained, value):
        data = changed(store.dump(trained), offsets=lambda a: np.full_like(a, value))
        try:
            model = store.parse(data, "absurd")
        except DataError:
            return
        got = MoEPredictor(model).predict(info())
        assert 1 <= got.quantile(0.5) <= got.quantile(0.99) < 1e18
        assert 0 <= got.cdf(100) <= 1
        assert got.remaining(10, 0.9) >= 1

    def test_what_is_no_file_is_not_opened(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "fifo", tmp_path):
            with pytest.raises(DataError, match="not a file of at most"):
                store.load(path)

    def test_a_failed_swap_changes_nothing(self, trained):
        predictor = MoEPredictor(trained.model)
        with pytest.raises(ValueError):
            predictor.swap(replace(trained.model, levels=np.array([0.5, 1.5])))
        assert predictor.model is trained.model
        assert predictor.predict(info()).quantile(0.5) >= 1


class TestOnline:
    def test_unknown_task_is_learned_within_fifty(self, trained):
        """Lengths that the model has wrong by a factor of thirty."""
        predictor = MoEPredictor(trained.model)
        rng = np.random.default_rng(2)
        lengths = 3000 * np.exp(0.3 * rng.normal(size=250))
        losses = []
        for length in lengths:
            request = info(prompt="table join", task="new", model="new")
            predicted = predictor.predict(request)
            losses.append(pinball(np.log([length]), np.array([predicted.log_quantiles]), LEVELS))
            predictor.observe(request, round(length), predicted)
        ideal = np.quantile(np.log(lengths), LEVELS)
        best = pinball(np.log(lengths[50:]), np.tile(ideal, (200, 1)), LEVELS)
        assert np.mean(losses[50:]) < 1.15 * best
        assert np.mean(losses[:5]) > 3 * best

    def test_coverage_returns_after_a_drift(self, trained):
        """The same requests, suddenly half as long again."""
        predictor = MoEPredictor(trained.model)
        rng = np.random.default_rng(3)
        hits = []
        for i, row in enumerate(pairs(1600, seed=11)):
            request = info(prompt=row["prompt"], task=row["task"], model=row["model"])
            predicted = predictor.predict(request)
            length = row["output_tokens"] * (1.5 if i > 400 else 1) * math.exp(0.1 * rng.normal())
            hits.append(length <= predicted.quantile(0.9))
            predictor.observe(request, max(1, round(length)), predicted)
        assert np.mean(hits[600:]) == pytest.approx(0.9, abs=0.03)

    def test_sessions_correct_too(self, trained):
        predictor = MoEPredictor(trained.model)
        request = info(task="sql", session="s")
        before = predictor.predict(request).quantile(0.5)
        for _ in range(6):
            predictor.observe(request, round(before * 20))
        other = replace(request, session="t")
        assert predictor.predict(request).quantile(0.5) > 1.2 * predictor.predict(other).quantile(
            0.5
        )

    def test_a_cut_off_answer_does_not_teach_short_lengths(self, trained):
        predictor = MoEPredictor(trained.model)
        before = predictor.predict(info(prompt="dragon queen", task="story")).quantile(0.5)
        capped = info(prompt="dragon queen", task="story", max_tokens=8)
        for _ in range(100):
            assert predictor.predict(capped).quantile(0.99) == 8
            predictor.observe(capped, 8)
            predictor.observe(replace(capped, session="s"), 8)
        after = predictor.predict(info(prompt="dragon queen", task="story", session="s")).quantile(
            0.5
        )
        assert after > before / 2

    def test_swap_keeps_sessions_and_drops_corrections(self, trained, examples):
        predictor = MoEPredictor(trained.model)
        request = info(task="sql", session="s")
        held = predictor.predict(request)
        for _ in range(30):
            predictor.observe(request, 5000)
        assert len(predictor.corrections) == 1
        predictor.swap(fit(examples, replace(SETTINGS, seed=5)).model)
        assert len(predictor.corrections) == 0
        predictor.observe(request, 12, held)  # predicted by the old model
        assert len(predictor.corrections) == 1
        assert predictor.predict(request).quantile(0.5) >= 1

    def test_max_tokens_and_context_bound_every_prediction(self, trained):
        request = info(prompt="dragon queen", task="story", max_tokens=50, context_left=30)
        assert MoEPredictor(trained.model).predict(request).quantile(0.99) <= 30
        free = MoEPredictor(trained.model, use_max_tokens=False)
        assert free.predict(replace(request, context_left=None)).quantile(0.5) > 50

    def test_without_a_view(self, trained):
        bare = RequestInfo("r", 40, 0.0, model="small", task="sql")
        assert MoEPredictor(trained.model).predict(bare).quantile(0.5) >= 1

    def test_one_absurd_length_does_not_rule_a_session(self, trained):
        predictor = MoEPredictor(trained.model)
        request = info(task="sql", session="s")
        before = predictor.predict(request).quantile(0.5)
        predictor.observe(request, 2**62)
        assert predictor.predict(request).quantile(0.5) < 3 * before

    def test_names_of_any_characters(self, trained):
        """Header values and JSON may hold lone surrogates; only so many characters of a name count."""
        predictor = MoEPredictor(trained.model)
        requests = [
            info(task=task, model=model, session=session)
            for task, model, session in [
                ("\udcff", "m", "\ud800"),
                ("\udcfe", "m", "\ud801"),
                ("é" * MAX_LABEL_LEN, "m", None),
                ("é" * MAX_LABEL_LEN + "x", "m", None),
                ("é" * (MAX_LABEL_LEN - 1) + "x", "m", None),
                ("", "\udcff", ""),
                (None, "\udcff" * 200, "a\0b"),
            ]
        ]
        for request in requests:
            before = predictor.predict(request).quantile(0.5)
            for _ in range(4):
                predictor.observe(request, round(before * 3))
            assert predictor.predict(request).quantile(0.5) > 1.1 * before
        assert len(predictor.corrections) == len(requests) - 1

    def test_predictions_carry_their_features_if_told_so(self, trained):
        predictor = MoEPredictor(trained.model, keep_features=True)
        asked = [info(prompt=f"table {'join ' * i}", session="s") for i in range(3)]
        predictor.observe(asked[0], 50)
        lengths = SessionLengths()
        lengths.add(asked[0].prompt_len, 50)
        for one, request in zip(predictor.predict_batch(asked), asked, strict=True):
            expected = extract([(request.view, lengths)])
            for name, got in zip(
                ("dense", "ends", "indices", "weights"), one.features, strict=True
            ):
                np.testing.assert_array_equal(got, getattr(expected, name))
        assert MoEPredictor(trained.model).predict(asked[0]).features is None

    def test_strange_requests_begin_with_doubt(self, trained):
        predictor = MoEPredictor(trained.model)

        def spread(**request):
            got = predictor.predict(info(**request))
            return math.log(got.quantile(0.9) / got.quantile(0.1))

        familiar, strange = {"task": "sql"}, {"task": "sql", "model": "never seen"}
        assert spread(**strange) > spread(**familiar) + 0.8
        for i in range(60):
            predictor.observe(info(**strange), 30 + i % 3)
        assert spread(**strange) < 0.8
