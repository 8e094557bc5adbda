# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Configuration files: what is accepted, and errors that name file and path."""

from __future__ import annotations

import pytest

from vllm_goodput.config import DeploymentConfig, GoodputConfig, PoolConfig, load_yaml
from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import SLO

POOL = "instances: [{name: a, url: 'http://127.0.0.1:1'}]\n"


def load(tmp_path, model, text):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return load_yaml(path, model)


def test_goodput_yaml(tmp_path):
    config = load(tmp_path, GoodputConfig, "slo: {e2el_ms: 20000}\nemulate: 'l40s:4'\n")
    assert config.slo.slo == SLO(e2el_ms=20000)
    assert (config.emulate.profile, config.emulate.scale) == ("l40s", 4.0)


def test_an_empty_file_means_the_defaults(tmp_path):
    assert load(tmp_path, GoodputConfig, "") == GoodputConfig()


@pytest.mark.parametrize(
    ("model", "text", "parts"),
    [
        (GoodputConfig, "sloo: {}", ["sloo", "unknown key"]),
        (GoodputConfig, "slo: {e2el: 3}", ["slo.e2el", "unknown key"]),
        (GoodputConfig, "slo: {e2el_ms: -3}", ["slo.e2el_ms", "greater than 0", "-3"]),
        (GoodputConfig, "slo: {e2el_ms: true}", ["slo.e2el_ms", "True"]),
        (GoodputConfig, "slo: {e2el_ms: .nan}", ["slo.e2el_ms"]),
        (GoodputConfig, "slo: {e2el_ms: 20s}", ["slo.e2el_ms", "20s"]),
        (GoodputConfig, "emulate: 'h100:fast'", ["emulate", "fast"]),
        (GoodputConfig, "emulate: {profile: h100, scale: 0}", ["emulate.scale"]),
        (GoodputConfig, "slo: {e2el_ms: 1}\nslo: {}", ["given twice"]),
        (GoodputConfig, "a: [", ["not valid YAML"]),
        (PoolConfig, "port: {{ port }}", ["not valid YAML"]),
        (PoolConfig, "port: 2026-13-45", ["not valid YAML"]),
        (PoolConfig, "port: !!int abc", ["not valid YAML"]),
        (PoolConfig, f"instances: [{{name: a, url: 'http://{'x' * 70}.example'}}]", ["base URL"]),
        (PoolConfig, 'instances: [{name: a, url: "http://x", api_key: "a\\n"}]', ["api_key"]),
        (GoodputConfig, "- 1", ["mapping"]),
        (PoolConfig, "port: 8000", ["instances", "required"]),
        (PoolConfig, "instances: []", ["instances"]),
        (PoolConfig, "instances: [{name: a, url: 'ftp://x'}]", ["instances.0.url", "base URL"]),
        (PoolConfig, "instances: [{name: a, url: 'http://x:99999'}]", ["instances.0.url"]),
        (PoolConfig, "instances: [{name: 'a b', url: 'http://x'}]", ["instances.0.name"]),
        (PoolConfig, POOL + "port: 70000", ["port"]),
        (PoolConfig, POOL + "router: {policy: best}", ["router.policy", "best"]),
        (PoolConfig, POOL + "router: {margin: 7}", ["router.margin"]),
        (PoolConfig, POOL + "router: {prefix: {size: 1}}", ["router.prefix.size", "unknown key"]),
        (PoolConfig, POOL + "log_decisions: some", ["log_decisions", "some"]),
        (PoolConfig, POOL + "log_decisions: on", ["log_decisions", "True"]),
        (
            PoolConfig,
            "instances: [{name: a, url: 'http://x', kv_tokens: 0}]",
            ["instances.0.kv_tokens", "greater than 0"],
        ),
        (
            PoolConfig,
            "instances: [{name: a, url: 'http://x'}, {name: a, url: 'http://y'}]",
            ["'a' is used twice"],
        ),
        (DeploymentConfig, "instances: [{name: a, port: 8001}]", ["instances.a.model"]),
        (
            DeploymentConfig,
            "model: m\ninstances: [{name: a, port: 8000}]",
            ["port '8000' is used twice"],
        ),
        (DeploymentConfig, "model: m\ninstances: [{name: gateway, port: 1}]", ["reserved"]),
    ],
)
def test_errors_name_the_file_and_the_path(tmp_path, model, text, parts):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, model, text)
    for part in ["file.yaml", *parts]:
        assert part in str(error.value)


def test_several_errors_come_together(tmp_path):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, GoodputConfig, "x: 1\nslo: {ttft_ms: 0}")
    assert len(str(error.value).splitlines()) == 2


def test_a_missing_file_and_a_binary_one(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path / "none.yaml", GoodputConfig)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"b\.yaml"):
        load_yaml(tmp_path / "b.yaml", GoodputConfig)


def test_an_api_key_does_not_show_in_a_printed_configuration(tmp_path):
    text = "instances: [{name: a, url: 'http://x', api_key: hunter2}]"
    assert "hunter2" not in repr(load(tmp_path, PoolConfig, text))


@pytest.mark.parametrize(
    ("text", "meant"),
    [("", "off"), ("off", "off"), ("'off'", "off"), ("rejections", "rejections"), ("all", "all")],
)
def test_decisions_are_logged_as_asked_whatever_yaml_makes_of_off(tmp_path, text, meant):
    line = f"log_decisions: {text}\n" if text else ""
    assert load(tmp_path, PoolConfig, POOL + line).log_decisions == meant
