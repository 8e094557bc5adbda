# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From a deployment's configuration to its processes and pool. Pure: starts and writes nothing.

GPUs are assigned by each instance's own `env: {CUDA_VISIBLE_DEVICES: ...}`. On a machine without
one the settings of `machine.CPU_ENV` and `machine.CPU_FLAGS` are added to each instance where the
user has not set them.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_goodput import envs
from vllm_goodput.config import (
    DeployedInstance,
    DeploymentConfig,
    EmulateConfig,
    GatewayConfig,
    InstanceConfig,
    PoolConfig,
)
from vllm_goodput.deploy import machine
from vllm_goodput.deploy.flags import Flag, normalise, render
from vllm_goodput.errors import ConfigError

DEFAULT_COMMAND = (sys.executable, "-m", "vllm_goodput.cli")


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start.

    Attributes:
        name: unique in the deployment; also names its log.
        argv: the whole command line.
        env: what is set over the inherited environment, the pool's secret included.
        url: base URL at which this machine reaches it.
        host: address it listens on.
        port: TCP port it listens on.
        log_path: where its output goes.
        device: for display, e.g. `cpu`, `gpu 0` or `l40s:4 (emulated)`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    url: str
    host: str
    port: int
    log_path: Path
    device: str = ""

    @property
    def health_url(self) -> str:
        """Answers 200 once it serves."""
        return f"{self.url}/health"


@dataclass(frozen=True)
class Plan:
    """Everything a deployment starts; gateways are planned when started, maybe several in turn."""

    config: DeploymentConfig
    instances: tuple[ProcessSpec, ...]
    pool: tuple[InstanceConfig, ...]
    log_dir: Path
    command: tuple[str, ...]
    secret: str = field(repr=False)

    def pool_config(self, gateway: GatewayConfig, port: int) -> PoolConfig:
        """What the gateway reads as its pool.yaml."""
        settings = {name: getattr(gateway, name) for name in GatewayConfig.model_fields}
        return PoolConfig(**(settings | {"port": port}), instances=self.pool)

    def gateway(self, gateway: GatewayConfig, port: int, name: str = "gateway") -> ProcessSpec:
        """The process of a gateway that reads `pool_path(name)`."""
        return ProcessSpec(
            name=name,
            argv=(*self.command, "route", "--config", str(self.pool_path(name))),
            env={envs.POOL_SECRET: self.secret, "PYTHONUNBUFFERED": "1"},
            url=machine.base_url(gateway.host, port),
            host=gateway.host,
            port=port,
            log_path=self.log_dir / f"{name}.log",
            device=f"policy {gateway.router.policy}",
        )

    def pool_path(self, name: str = "gateway") -> Path:
        """The generated pool.yaml of a gateway."""
        return self.log_dir / ("pool.yaml" if name == "gateway" else f"pool-{name}.yaml")


def make_plan(
    config: DeploymentConfig,
    environ: Mapping[str, str],
    *,
    cpu: bool,
    command: Sequence[str] = DEFAULT_COMMAND,
) -> Plan:
    """Plan a deployment.

    Args:
        config: the deployment.
        environ: the environment that the processes will inherit.
        cpu: whether the machine has no accelerator.
        command: what precedes `serve ...` and `route ...` on each command line.

    Raises:
        ConfigError: a flag or variable that a deployment cannot take.
    """
    log_dir = Path(config.log_dir).absolute()
    secret = envs.pool_secret(environ) or secrets.token_urlsafe(32)
    instances, pool = [], []
    for instance in config.instances:
        flags = _flags(config, instance, cpu)
        env = _env(config, instance, environ, cpu)
        url = machine.base_url(config.host, instance.port)
        model = instance.model or config.model or ""
        spec = ProcessSpec(
            name=instance.name,
            argv=(*command, "serve", model, *_own_flags(config, instance), *render(flags)),
            env=env | {envs.POOL_SECRET: secret},
            url=url,
            host=config.host,
            port=instance.port,
            log_path=log_dir / f"{instance.name}.log",
            device=_device(instance, env, environ, cpu),
        )
        instances.append(spec)
        pool.append(_pool_entry(instance.name, url, flags, env))
    return Plan(config, tuple(instances), tuple(pool), log_dir, tuple(command), secret)


def _own_flags(config: DeploymentConfig, instance: DeployedInstance) -> list[str]:
    argv = ["--host", config.host, "--port", str(instance.port)]
    return argv + (
        ["--goodput-emulate", _emulate(instance.emulate)] if instance.emulate is not None else []
    )


def _emulate(emulate: EmulateConfig) -> str:
    return f"{emulate.profile}:{str(emulate.scale).removesuffix('.0')}"


def _flags(config: DeploymentConfig, instance: DeployedInstance, cpu: bool) -> dict[str, Flag]:
    where = f"instances.{instance.name}.args"
    flags = normalise(config.args, "args") | normalise(instance.args, where)
    if instance.emulate is not None and flags.get("goodput-emulate") is not None:
        raise ConfigError(f"{where}.goodput-emulate: given together with the field 'emulate'")
    if cpu:
        flags |= machine.cpu_flags(flags)
    return {name: value for name, value in flags.items() if value is not None}


def _env(
    config: DeploymentConfig,
    instance: DeployedInstance,
    environ: Mapping[str, str],
    cpu: bool,
) -> dict[str, str]:
    for where, env in (("env", config.env), (f"instances.{instance.name}.env", instance.env)):
        if envs.POOL_SECRET in env:
            raise ConfigError(
                f"{where}.{envs.POOL_SECRET}: set it in the environment of `vllm-goodput up`, "
                "which hands it to every process"
            )
    own = {name: str(value) for name, value in (config.env | instance.env).items()}
    defaults = {"PYTHONUNBUFFERED": "1"} | (machine.CPU_ENV if cpu else {})
    return {k: v for k, v in defaults.items() if k not in environ and k not in own} | own


def _pool_entry(
    name: str, url: str, flags: Mapping[str, Flag], env: Mapping[str, str]
) -> InstanceConfig:
    seqs = flags.get("max-num-seqs")
    api_key = flags.get("api-key") or env.get("VLLM_API_KEY")
    return InstanceConfig(
        name=name,
        url=url,
        max_num_seqs=seqs if isinstance(seqs, int) and not isinstance(seqs, bool) else None,
        api_key=None if api_key is None else str(api_key),
    )


def _device(
    instance: DeployedInstance, env: Mapping[str, str], environ: Mapping[str, str], cpu: bool
) -> str:
    visible = env.get("CUDA_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")
    device = "cpu" if cpu else f"gpu {visible}" if visible else "gpu"
    if instance.emulate is None:
        return device
    return f"{_emulate(instance.emulate)} (emulated on {device})"
