# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Switching the plugin on and off, in processes of their own because patches last as long as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from vllm_goodput import compat, envs
from vllm_goodput.cli.flags import config_from_args
from vllm_goodput.compat import SUPPORTED_VLLM, in_range
from vllm_goodput.config import GoodputConfig
from vllm_goodput.errors import ConfigError, UnsupportedVLLMError
from vllm_goodput.slo import SLO

REPORT = """
import json
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
import vllm.plugins
from vllm.v1.engine.core import EngineCore
print(json.dumps({
    "add": getattr(EngineArgs.add_cli_args, "__goodput_patch__", None),
    "from": getattr(EngineArgs.from_cli_args, "__goodput_patch__", None),
    "schedule": getattr(Scheduler.schedule, "__goodput_patch__", None),
    "update": getattr(Scheduler.update_from_output, "__goodput_patch__", None),
    "endpoints": getattr(vllm.plugins.load_endpoint_plugins, "__goodput_patch__", None),
    "stats": hasattr(EngineCore, "goodput_stats"),
}))
"""


def run(code, **env):
    full = {k: v for k, v in os.environ.items() if not k.startswith("GOODPUT_")} | env
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT], capture_output=True, text=True, env=full, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


REGISTER = "from vllm_goodput.plugin import register, enable\nregister()\nregister()\n"


def test_installed_but_not_enabled_only_the_flags_are_there():
    assert run(REGISTER) == {
        "add": "add_cli_args",
        "from": "from_cli_args",
        "schedule": None,
        "update": None,
        "endpoints": None,
        "stats": False,
    }


def test_enabling_applies_everything_once():
    got = run(REGISTER + "enable({'slo': {'e2el_ms': 5}})\nenable()\n")
    assert got["schedule"] == got["update"] == "step_padding"
    assert got["endpoints"] == "endpoint_plugins"
    assert got["stats"] is True


def test_a_child_process_follows_the_environment_alone():
    got = run(REGISTER, GOODPUT_CONFIG=GoodputConfig().model_dump_json())
    assert got["schedule"] == "step_padding"


def test_enable_publishes_to_children_and_to_ray():
    code = (
        "import os\nos.environ['VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY'] = 'MINE_'\n"
        "from vllm_goodput import enable\nenable({'slo': {'tpot_ms': 7}})\nenable({'slo': {'tpot_ms': 8}})\n"
        "print(os.environ['GOODPUT_CONFIG'])\nprint(os.environ['VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    config, prefixes = done.stdout.strip().splitlines()[-2:]
    assert json.loads(config)["slo"]["tpot_ms"] == 8
    assert prefixes == "MINE_,GOODPUT_"


class Args:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_flags_override_the_file(tmp_path):
    path = tmp_path / "goodput.yaml"
    path.write_text("slo: {ttft_ms: 100, e2el_ms: 200}\nemulate: t4\n")
    args = Args(plugin="goodput", goodput_config=str(path), goodput_slo=["e2el:900"])
    config = config_from_args(args)
    assert config.slo.slo == SLO(ttft_ms=100, e2el_ms=900)
    assert config.emulate.profile == "t4"


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"plugin": "godput"}, "unknown plugin 'godput'"),
        ({"goodput_slo": ["e2el:5"]}, "--goodput-slo needs --plugin goodput"),
        ({"goodput_emulate": "t4"}, "--goodput-emulate needs --plugin goodput"),
        ({"plugin": "goodput", "goodput_slo": ["x:5"]}, "METRIC:MILLISECONDS"),
        ({"plugin": "goodput", "goodput_emulate": "t4:0"}, "SCALE"),
        ({"plugin": "goodput", "goodput_emulate": "t4:nan"}, "SCALE"),
        ({"plugin": "goodput", "goodput_config": "/none.yaml"}, "/none.yaml"),
    ],
)
def test_wrong_flags_are_one_clear_error(values, part):
    with pytest.raises(ConfigError, match=part):
        config_from_args(Args(**values))


def test_no_flag_means_off():
    assert config_from_args(Args()) is None


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("0.31.9", False),
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.33.1rc1", True),
        ("0.34.0", False),
        ("1.0", False),
    ],
)
def test_the_declared_range(version, supported):
    from packaging.version import Version

    assert in_range(Version(version), SUPPORTED_VLLM) is supported


def test_an_unsupported_vllm_is_one_clear_error_that_can_be_waived(monkeypatch):
    from packaging.version import Version

    monkeypatch.setattr(compat, "vllm_version", lambda: Version("0.20.0"))
    with pytest.raises(UnsupportedVLLMError, match=r"vLLM 0\.20\.0 is not supported"):
        compat.check_vllm()
    monkeypatch.setenv(envs.ALLOW_ANY_VLLM, "1")
    assert str(compat.check_vllm()) == "0.20.0"
    monkeypatch.setattr(compat, "vllm_version", lambda: None)
    with pytest.raises(UnsupportedVLLMError, match="not installed"):
        compat.check_vllm()


@pytest.mark.parametrize(
    ("values", "environ"),
    [({"grpc": True}, {}), ({"grpc_port": 5}, {}), ({}, {"VLLM_USE_RUST_FRONTEND": "1"})],
)
def test_front_ends_that_bypass_the_plugin_are_refused(values, environ, monkeypatch, capsys):
    from vllm_goodput.cli.flags import enable_from_args

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stop:
        enable_from_args(Args(plugin="goodput", **values))
    assert stop.value.code == 2
    assert "does not work with" in capsys.readouterr().err
