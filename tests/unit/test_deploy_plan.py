# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
from __future__ import annotations

import pytest
import yaml

from vllm_goodput.config import DeploymentConfig, PoolConfig, load_yaml, validate
from vllm_goodput.deploy.files import dry_run, pool_yaml
from vllm_goodput.deploy.plan import make_plan
from vllm_goodput.errors import ConfigError


def deployment(**changes):
    data = {"model": "m", "instances": [{"name": "a", "port": 9001}]} | changes
    return validate(data, DeploymentConfig, "test")


def argv_of(config, index=0, *, cpu=False, environ=None):
    plan = make_plan(config, environ or {}, cpu=cpu, command=["cmd"])
    return list(plan.instances[index].argv)


def test_the_command_line_has_model_address_and_flags():
    config = deployment(args={"max-num-seqs": 16, "seed": 0})
    expected = "cmd serve m --host 127.0.0.1 --port 9001 --max-num-seqs 16 --seed 0"
    assert argv_of(config) == expected.split()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (16, ["--k", "16"]),
        (0.5, ["--k", "0.5"]),
        ("text with spaces", ["--k", "text with spaces"]),
        ("-1", ["--k=-1"]),
        (-1, ["--k=-1"]),
        (True, ["--k"]),
        (False, ["--no-k"]),
        (None, []),
    ],
)
def test_flag_values(value, expected):
    assert argv_of(deployment(args={"k": value}))[7:] == expected


def test_instance_settings_win_and_null_removes_an_inherited_flag():
    config = deployment(
        args={"max-num-seqs": 16, "seed": 1, "dtype": "float16"},
        env={"A": "1", "B": "1"},
        instances=[
            {
                "name": "a",
                "port": 9001,
                "model": "other",
                "args": {"max_num_seqs": 4, "seed": None},
                "env": {"B": 2},
            }
        ],
    )
    plan = make_plan(config, {}, cpu=False, command=["cmd"])
    argv = plan.instances[0].argv
    assert argv[2] == "other"
    assert argv[7:] == ("--max-num-seqs", "4", "--dtype", "float16")
    assert (plan.instances[0].env["A"], plan.instances[0].env["B"]) == ("1", "2")
    assert plan.pool[0].max_num_seqs == 4


def test_dotted_flags_keep_their_underscores():
    config = deployment(args={"kv_transfer_config.kv_role": "kv_both"})
    assert argv_of(config)[7:] == ["--kv-transfer-config.kv_role", "kv_both"]


@pytest.mark.parametrize("scale", [4.0, 4])
def test_emulate_becomes_a_flag(scale):
    instance = {"name": "a", "port": 1, "emulate": {"profile": "l40s", "scale": scale}}
    assert argv_of(deployment(instances=[instance]))[7:] == ["--goodput-emulate", "l40s:4"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"--seed": 1}, "without leading dashes"),
        ({"port": 1}, "field 'port'"),
        ({"max-num-seqs": 1, "max_num_seqs": 2}, "given twice"),
    ],
)
def test_bad_flags_name_their_path(args, message):
    with pytest.raises(ConfigError, match=f"^args.*{message}"):
        argv_of(deployment(args=args))


def test_lists_are_refused():
    with pytest.raises(ConfigError, match=r"args\.k"):
        deployment(args={"k": [1, 2]})


def test_cpu_machines_get_the_settings_for_engines_side_by_side():
    plan = make_plan(deployment(), {}, cpu=True, command=["cmd"])
    spec = plan.instances[0]
    assert " ".join(spec.argv[7:]) == (
        "--gpu-memory-utilization 0.1 --distributed-executor-backend uni --enforce-eager"
    )
    assert spec.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert spec.env["OMP_NUM_THREADS"] == "1"
    assert spec.env["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_cpu_settings_leave_alone_what_the_user_set():
    config = deployment(
        args={"gpu_memory_utilization": 0.3, "enforce-eager": None, "tensor-parallel-size": 2},
        env={"VLLM_CPU_KVCACHE_SPACE": 4},
    )
    plan = make_plan(config, {"OMP_NUM_THREADS": "8"}, cpu=True, command=["cmd"])
    spec = plan.instances[0]
    assert spec.argv[7:] == ("--gpu-memory-utilization", "0.3", "--tensor-parallel-size", "2")
    assert spec.env["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert "OMP_NUM_THREADS" not in spec.env


def test_the_secret_is_taken_from_the_environment_or_made_and_shared():
    config = deployment(instances=[{"name": "a", "port": 1}, {"name": "b", "port": 2}])
    given = make_plan(config, {"GOODPUT_POOL_SECRET": "s3"}, cpu=False)
    assert {s.env["GOODPUT_POOL_SECRET"] for s in given.instances} == {"s3"}
    made = make_plan(config, {}, cpu=False)
    specs = [*made.instances, made.gateway(config.gateway, 8000)]
    found = {s.env["GOODPUT_POOL_SECRET"] for s in specs}
    assert len(found) == 1
    assert len(made.secret) >= 32
    assert found != {make_plan(config, {}, cpu=False).secret}


def test_the_secret_shows_nowhere():
    config = deployment(args={"api-key": "k3y"}, env={"HF_TOKEN": "t0ken"})
    plan = make_plan(config, {"GOODPUT_POOL_SECRET": "s3cret"}, cpu=False)
    gateway = plan.gateway(config.gateway, 8000)
    pool = pool_yaml(plan.pool_config(config.gateway, 8000))
    commands = " ".join([*plan.instances[0].argv, *gateway.argv])
    assert "s3cret" not in f"{plan!r} {plan.instances[0]!r} {gateway!r} {pool} {commands}"
    assert "k3y" in pool  # the gateway needs it to talk to the instance
    shown = dry_run(plan)
    assert not any(text in shown for text in ("s3cret", "k3y", "t0ken"))
    assert "GOODPUT_POOL_SECRET=***" in shown


def test_the_secret_in_the_file_is_refused():
    with pytest.raises(ConfigError, match=r"env\.GOODPUT_POOL_SECRET"):
        make_plan(deployment(env={"GOODPUT_POOL_SECRET": "x"}), {}, cpu=False)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:9001"),
        ("::", "http://[::1]:9001"),
        ("10.1.2.3", "http://10.1.2.3:9001"),
    ],
)
def test_urls_are_reachable_from_this_machine(host, url):
    plan = make_plan(deployment(host=host), {}, cpu=False)
    assert plan.pool[0].url == url
    assert plan.instances[0].health_url == f"{url}/health"


def test_the_written_pool_is_read_back_equal(tmp_path):
    config = deployment(
        gateway={"port": 8123, "slo": {"e2el_ms": 20000}, "router": {"policy": "just_enough"}},
        args={"max-num-seqs": 8},
    )
    plan = make_plan(config, {}, cpu=False)
    pool = plan.pool_config(config.gateway, config.gateway.port)
    path = tmp_path / "pool.yaml"
    path.write_text(pool_yaml(pool))
    assert load_yaml(path, PoolConfig) == pool
    assert yaml.safe_load(path.read_text())["port"] == 8123
