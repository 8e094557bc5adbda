# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From settings to a predictor, and the predictors that learn nothing."""

from __future__ import annotations

import contextlib
import logging
import random

import pytest
from pydantic import ValidationError

from tests.fakes.length_model import save_model, trained
from vllm_goodput.cli import main
from vllm_goodput.config import PoolConfig, RouterConfig, load_yaml, validate
from vllm_goodput.deploy.files import pool_yaml
from vllm_goodput.errors import ConfigError, DataError
from vllm_goodput.predictor import TaskHistogram
from vllm_goodput.predictor.constant import ConstantLength, MaxTokensLength
from vllm_goodput.predictor.factory import make_predictor
from vllm_goodput.predictor.guard import GuardedPredictor, Seldom
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.store import dump, parse
from vllm_goodput.router import RequestInfo, Router

INSTANCES = [{"name": "a", "url": "http://127.0.0.1:1"}]


def router(**predictor):
    return RouterConfig.model_validate({"initial_output_len": 100, "predictor": predictor})


def info(**known):
    return RequestInfo("r", 10, 0.0, **known)


@pytest.mark.parametrize(
    ("kind", "made"),
    [("histogram", TaskHistogram), ("constant", ConstantLength), ("max_tokens", MaxTokensLength)],
)
def test_each_kind(kind, made):
    assert type(make_predictor(router(kind=kind))) is made


def test_a_model_file_is_loaded(tmp_path):
    predictor = make_predictor(router(model=save_model(tmp_path / "m.npz", 50)))
    assert isinstance(predictor, MoEPredictor)
    assert 40 < predictor.predict(info()).quantile(0.5) < 60


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 no"])
def test_a_model_that_cannot_be_loaded_is_named(tmp_path, content):
    path = tmp_path / "m.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"m\.npz"):
        make_predictor(router(model=str(path)))


def test_the_gateway_does_not_start_without_its_model(tmp_path, capsys):
    pool = tmp_path / "pool.yaml"
    pool.write_text(
        "port: 0\nrouter: {predictor: {model: gone.npz}}\n"
        "instances: [{name: a, url: 'http://127.0.0.1:1'}]\n"
    )
    assert main(["route", "--config", str(pool)]) == 2
    err = capsys.readouterr().err
    assert "router.predictor.model: cannot read the model" in err
    assert "gone.npz" in err
    assert "vllm-goodput train" in err


def test_a_model_is_for_the_learned_kind_only():
    with pytest.raises(ValidationError, match="only kind 'learned' has a model, got 'histogram'"):
        router(kind="histogram", model="m.npz")


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        ({"kind": "oracle"}, "router.predictor.kind"),
        ({"reload_s": 0}, "router.predictor.reload_s"),
        ({"log": {"max_mb": 1}}, "router.predictor.log.path"),
        ({"log": {"path": "l", "max_mb": -1}}, "router.predictor.log.max_mb"),
        ({"kind": "histogram", "log": {"path": "l"}}, "router.predictor: log: only kind"),
    ],
)
def test_errors_name_the_setting(predictor, message):
    data = {"instances": INSTANCES, "router": {"predictor": predictor}}
    with pytest.raises(ConfigError) as error:
        validate(data, PoolConfig, "pool.yaml")
    assert message in str(error.value)


def test_settings_survive_being_written_for_the_gateway(tmp_path):
    data = {"model": "m.npz", "log": {"path": "l.jsonl"}}
    pool = PoolConfig.model_validate({"instances": INSTANCES, "router": {"predictor": data}})
    path = tmp_path / "pool.yaml"
    path.write_text(pool_yaml(pool))
    assert load_yaml(path, PoolConfig) == pool


def test_a_constant_is_narrow_and_never_learns():
    predictor = ConstantLength(100)
    for _ in range(10):
        predictor.observe(info(), 5000)
    lengths = predictor.predict(info())
    assert 97 < lengths.quantile(0.01) < lengths.quantile(0.99) < 103
    assert lengths.cdf(97) == 0
    assert lengths.cdf(103) == 1
    assert lengths.remaining(40, 0.5) == pytest.approx(60)
    assert predictor.predict(info(max_tokens=7)).quantile(0.7) == 7
    assert predictor.predict(info(context_left=7)).quantile(0.7) == 7
    free = ConstantLength(100, use_max_tokens=False)
    assert free.predict(info(max_tokens=7)).quantile(0.7) > 99
    assert [d.quantile(0.5) for d in predictor.predict_batch([info()] * 2)] == [
        pytest.approx(100)
    ] * 2


def test_max_tokens_is_taken_for_the_length():
    predictor = MaxTokensLength(100)
    assert predictor.predict(info(max_tokens=1234)).quantile(0.7) == 1234
    assert predictor.predict(info(max_tokens=1)).quantile(0.7) == 1
    assert predictor.predict(info()).quantile(0.5) == pytest.approx(100)
    assert predictor.predict(info(max_tokens=1234, context_left=20)).quantile(0.7) == 20


class Broken(ConstantLength):
    """Fails on requests of one task."""

    def predict(self, info):
        if info.task == "odd":
            raise ValueError("a secret prompt")
        return super().predict(info)

    def observe(self, info, output_len, predicted=None):
        self.predict(info)


def guarded():
    failures = []
    return GuardedPredictor(Broken(100), TaskHistogram(10), lambda: failures.append(1)), failures


def test_one_odd_request_does_not_spoil_a_batch(caplog):
    predictor, failures = guarded()
    infos = [info(), info(task="odd"), info(task="x")]
    usual, odd, other = predictor.predict_batch(infos)
    assert usual.quantile(0.5) == other.quantile(0.5) == pytest.approx(100)
    assert 5 < odd.quantile(0.5) < 20
    predictor.predict_batch(infos)
    assert len(failures) == 2
    (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert "ValueError" in line
    assert "secret" not in line


def test_a_failure_to_learn_leaves_the_routers_books_in_order():
    predictor, failures = guarded()
    routing = Router(RouterConfig(), predictor)
    routing.add_instance("a")
    odd = info(task="odd")
    for _ in range(30):
        routing.on_dispatched(odd, routing.route(odd, 0.0), 0.0)
        routing.on_finished("r", 400, 1.0)
    assert not routing.instances["a"].in_flight
    assert len(failures) == 60
    assert predictor.predict(odd).quantile(0.5) > 300  # the one that stands in has learned


def test_seldom(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    seldom = Seldom(60)
    assert [seldom.now(), seldom.now()] == [True, False]
    now_s = 161.0
    assert seldom.now()


def test_a_damaged_model_file_is_a_data_error_whatever_is_damaged():
    data = dump(trained(50))
    rng = random.Random(0)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.choice([rng.randrange(200), -1 - rng.randrange(1500)])] = rng.randrange(256)
        with contextlib.suppress(DataError):
            parse(bytes(damaged), "model.npz")
