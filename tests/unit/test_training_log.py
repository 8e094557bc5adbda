# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The training log: what is in it, how large it gets, what happens when it cannot be written, and reading it back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import orjson
import pytest

from tests.fakes.length_model import TINY, trained
from vllm_goodput.errors import DataError
from vllm_goodput.predictor.features import FEATURE_VERSION, NUMBERS, extract
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.log import LoggingPredictor, TrainingLog, opening, read_log
from vllm_goodput.predictor.training import fit
from vllm_goodput.predictor.view import view_of
from vllm_goodput.router import RequestInfo

SECRET = "Zanzibar marmalade"


def chat(*texts, system=None):
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)
    ]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return view_of({"model": "m", "messages": messages}, True, 50, None)


def request(number=0, *, view=None, **known):
    view = view or chat(f"{SECRET} {number}")
    return RequestInfo(f"r{number}", 50, 0.0, model=view.model, view=view, **known)


def write(path, requests, max_mb=1.0, output_len=20, **settings):
    log = TrainingLog(path, max_mb, **settings)
    for info in requests:
        log.add(info, extract([(info.view, None)]), output_len)
    log.close()
    return log


def lines(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_a_line_has_features_and_lengths_but_no_text(tmp_path):
    path = tmp_path / "logs" / "l.jsonl"
    view = chat(f"{SECRET} one", f"{SECRET} two", f"{SECRET} three", system=f"{SECRET} four")
    write(path, [request(view=view, session="my-session", task="t", max_tokens=20)])
    raw = path.read_bytes()
    for word in ("zanzibar", "marmalade", "three", "my-session"):
        assert word not in raw.decode().lower()
    (row,) = lines(path)
    assert set(row) == {
        *(
            "goodput_features",
            "task",
            "model",
            "output_len",
            "cut",
            "session",
            "first",
            "dense",
            "grams",
        )
    }
    assert (row["goodput_features"], row["task"], row["model"]) == (FEATURE_VERSION, "t", "m")
    assert (row["output_len"], row["cut"]) == (20, True)
    assert path.stat().st_mode & 0o077 == 0


def test_features_survive_the_file(tmp_path):
    requests = [request(n, session=f"s{n // 3}", task="ab"[n % 2]) for n in range(9)]
    write(tmp_path / "l.jsonl", requests)
    seen = []
    data = read_log([tmp_path / "l.jsonl"], seen.append)
    features = extract([(info.view, None) for info in requests])
    np.testing.assert_allclose(data.features.dense, features.dense, atol=1e-4)
    np.testing.assert_array_equal(data.features.ends, features.ends)
    for n in range(9):
        one, other = data.features.row(n), features.row(n)
        at, other_at = np.argsort(one.indices), np.argsort(other.indices)
        np.testing.assert_array_equal(one.indices[at], other.indices[other_at])
        np.testing.assert_allclose(one.weights[at], other.weights[other_at], atol=1e-6)
    assert data.task.tolist() == list("ababababa")
    assert data.session.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.output_len.tolist() == [20.0] * 9
    assert data.source == ["l.jsonl"]


def test_turns_of_a_conversation_have_the_same_opening():
    for system in (None, "be brief", "s" * 400, "s" * 2000):
        for user in ("hello there", "u" * 300, "u" * 5000):
            first = opening(chat(user, system=system))
            assert opening(chat(user, "an answer", "go on", system=system)) == first
            assert opening(chat(user, "an answer", "go on", "yes", "x", system=system)) == first
            assert opening(chat("other", system=system)) != first


def test_a_session_has_one_group_and_equal_openings_share_one(tmp_path):
    views = [chat("a"), chat("b"), chat("a"), chat("c")]
    sessions = ["s", "s", "t", None]
    path = tmp_path / "l.jsonl"
    pairs = zip(views, sessions, strict=True)
    write(path, [request(n, view=v, session=s) for n, (v, s) in enumerate(pairs)])
    data = read_log([path])
    assert data.session.tolist() == [0, 0, 1, 2]
    assert data.group[0] == data.group[1] == data.group[2] != data.group[3]


def test_hashes_differ_between_runs(tmp_path):
    path = tmp_path / "l.jsonl"
    for _ in range(2):
        write(path, [request(session="s")])
    one, other = lines(path)
    assert one["session"] != other["session"]
    assert one["first"] != other["first"]
    assert len(one["session"]) == 16


def test_it_stays_below_its_bound(tmp_path):
    path = tmp_path / "l.jsonl"
    max_mb = 0.02
    for _ in range(3):
        write(path, [request(n) for n in range(30)], max_mb)
        both = [path, tmp_path / "l.jsonl.1"]
        assert sum(f.stat().st_size for f in both) <= max_mb * 2**20
    assert sorted(p.name for p in tmp_path.iterdir()) == ["l.jsonl", "l.jsonl.1"]
    # The rotated one comes first, and is read once even if it is named as well.
    data = read_log([path, both[1]])
    assert len(data) == sum(len(lines(f)) for f in both)
    assert data.source == ["l.jsonl.1", "l.jsonl"]


def test_a_line_over_the_bound_is_dropped(tmp_path, caplog):
    dropped = []
    write(tmp_path / "l.jsonl", [request(), request()], 1e-4, dropped=lambda: dropped.append(1))
    assert (tmp_path / "l.jsonl").read_bytes() == b""
    assert len(dropped) == 2
    assert len([r for r in caplog.records if "training log" in r.getMessage()]) == 1


def test_a_full_queue_drops(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("vllm_goodput.predictor.log.MAX_WAITING", 2)
    held = threading.Event()
    real = TrainingLog._write

    def slow(self, line):
        held.wait(10)
        real(self, line)

    monkeypatch.setattr(TrainingLog, "_write", slow)
    dropped = []
    log = TrainingLog(tmp_path / "l.jsonl", 1.0, lambda: dropped.append(1))
    info = request()
    for _ in range(10):
        log.add(info, extract([(info.view, None)]), 5)
    held.set()
    log.close()
    assert len(lines(tmp_path / "l.jsonl")) + len(dropped) == 10
    assert len(dropped) >= 7
    assert len(caplog.records) == 1


def test_a_full_disk_drops_and_recovers(tmp_path, monkeypatch):
    path = tmp_path / "l.jsonl"
    dropped = []
    log = TrainingLog(path, 1.0, lambda: dropped.append(1))
    info = request()
    real = os.write
    wrote = threading.Event()

    def half(fd, data):
        monkeypatch.setattr(os, "write", real)
        wrote.set()
        return real(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    log.add(info, extract([(info.view, None)]), 5)
    assert wrote.wait(5)
    log.add(info, extract([(info.view, None)]), 6)
    log.close()
    assert [row["output_len"] for row in lines(path)] == [6]
    assert len(dropped) == 1


@pytest.mark.parametrize("away", [Path.unlink, lambda path: path.rename(f"{path}.old")])
def test_a_log_that_was_taken_away_is_made_again(tmp_path, away):
    path = tmp_path / "l.jsonl"
    log = TrainingLog(path, 1.0)
    away(path)
    for number in range(40):
        info = request(number)
        log.add(info, extract([(info.view, None)]), number + 1)
    log.close()
    assert [line["output_len"] for line in lines(path)] == list(range(1, 41))


def test_where_it_cannot_be_it_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "l.jsonl"):
        with pytest.raises(DataError, match="cannot write the training log"):
            TrainingLog(path, 1.0)


def test_another_file_is_never_touched(tmp_path):
    path = tmp_path / "model.npz"
    for content in (b"precious\nbytes without a line break", b'{"version":1,"mine":2}', b"{"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="another file"):
            TrainingLog(path, 1.0)
        assert path.read_bytes() == content


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "l.jsonl"
    log = TrainingLog(path, 1.0)
    with pytest.raises(DataError, match="another process is writing to it"):
        TrainingLog(path, 1.0)
    log.close()
    TrainingLog(path, 1.0).close()


@pytest.mark.parametrize(
    "rest", [b'{"goodput_features":1,"ta', b'{"go', b'{"goodput_features":1,"x":"' + b"x" * 200_000]
)
def test_a_torn_line_is_skipped_and_written_over(tmp_path, rest):
    path = tmp_path / "l.jsonl"
    write(path, [request(1), request(2)])
    path.write_bytes(path.read_bytes() + rest)
    assert len(read_log([path])) == 2
    write(path, [request(3)])
    assert len(read_log([path])) == 3


def damaged(**changes):
    return lambda row: {**row, **changes}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged(goodput_features=FEATURE_VERSION + 1), f"feature version {FEATURE_VERSION + 1}"),
        (damaged(goodput_features=None), "feature version None"),
        (damaged(output_len=0), "output_len must be"),
        (damaged(output_len="5"), "output_len must be"),
        (damaged(task=None), "task must be a string"),
        (damaged(session=5), "session must be a string"),
        (damaged(dense=[1.0]), "dense must be a list of"),
        (damaged(dense=None), "dense must be"),
        (damaged(grams=[[0.5, [10**6]]]), "grams must be"),
        (damaged(grams=[[0.5, [-1]]]), "grams must be"),
        (damaged(grams=[0.5]), "grams must be"),
        (lambda row: [row], "the line must be a JSON object"),
    ],
)
def test_a_bad_line_is_named(tmp_path, damage, message):
    path = tmp_path / "l.jsonl"
    write(path, [request(1), request(2), request(3)])
    rows = lines(path)
    rows[1] = damage(rows[1])
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)) + b"\n")
    with pytest.raises(DataError) as error:
        read_log([path])
    assert f"{path}:2: " in str(error.value)
    assert message in str(error.value)


def test_a_line_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_bytes(b"{\n{}\n")
    with pytest.raises(DataError, match=r"l\.jsonl:1: not JSON"):
        read_log([path])


def test_no_file_and_no_rows_are_errors(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*gone\.jsonl"):
        read_log([tmp_path / "gone.jsonl"])
    write(tmp_path / "empty.jsonl", [])
    with pytest.raises(DataError, match=r"no requests in .*empty\.jsonl"):
        read_log([tmp_path / "empty.jsonl"])
    with pytest.raises(DataError, match="no training logs"):
        read_log([])


def test_labels_are_bounded_and_may_hold_anything(tmp_path):
    path = tmp_path / "l.jsonl"
    view = view_of({"model": "m" * 1000, "prompt": "x"}, False, 1, None)
    write(path, [request(view=view, task="t\udce9" + "t" * 1000, session="\udce9")])
    (row,) = lines(path)
    assert row["task"] == "t?" + "t" * 126
    assert len(row["model"]) == 128


def test_features_are_those_on_arrival_and_the_log_trains(tmp_path):
    path = tmp_path / "l.jsonl"
    log = TrainingLog(path, 10.0)
    predictor = LoggingPredictor(MoEPredictor(trained(100).model, keep_features=True), log)
    infos = [request(n, session=f"s{n % 12}", task="t") for n in range(60)]
    predicted = predictor.predict_batch(infos)  # all arrive before any finishes
    for number, (info, lengths) in enumerate(zip(infos, predicted, strict=True)):
        if number == 30:
            predictor.swap(trained(1000).model)
        predictor.observe(info, 300, lengths)
    predictor.observe(infos[0], 300)  # nothing is known of its arrival
    log.close()
    data = read_log([path])
    assert len(data) == 60
    known = data.features.dense[:, NUMBERS.index("known lengths")]
    assert (known == 0).all()
    model = fit(data, TINY).model
    median = MoEPredictor(model).predict(request(1, session="s1")).quantile(0.5)
    assert 250 < median < 350
