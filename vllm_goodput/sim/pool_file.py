# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Pools to simulate, from files: a deployment.yaml whose instances say `emulate:`, or a file of instances alone.

The second form needs neither ports nor a model:

    instances:
      - {name: big, emulate: h100, max_num_seqs: 64}
      - {name: small, emulate: "t4:2", kv_tokens: 60000}
    router: {policy: goodput}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from vllm_goodput.config import (
    DeployedInstance,
    DeploymentConfig,
    Emulate,
    Model,
    Name,
    PositiveInt,
    RouterConfig,
    load_yaml,
)
from vllm_goodput.deploy.flags import Flag, normalise
from vllm_goodput.emulation import load_profile
from vllm_goodput.errors import ConfigError
from vllm_goodput.sim.spec import SimInstance, check_names

# Keys of a deployment.yaml that the other form does not have.
_DEPLOYMENT_KEYS = {"model", "host", "args", "env", "gateway", "log_dir"}


@dataclass(frozen=True, kw_only=True)
class EngineDefaults:
    """What a file that does not say otherwise means, in terms of vLLM's own defaults on a kind of device."""

    block_size: int
    async_scheduling: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int


ENGINES = {
    "gpu": EngineDefaults(
        block_size=16,
        async_scheduling=True,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        kv_tokens=262_144,
    ),
    # As `vllm-goodput up` starts vLLM's CPU build, with the tiny model of the examples.
    "cpu": EngineDefaults(
        block_size=128,
        async_scheduling=False,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        kv_tokens=2_097_152,
    ),
}


class SimulatedInstance(Model):
    """One instance of a pool file without ports; what is left open is vLLM's default."""

    name: Name
    emulate: Emulate
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    kv_tokens: PositiveInt | None = None
    block_size: PositiveInt | None = None
    prefix_caching: bool = True
    async_scheduling: bool | None = None


class SimulatedPool(Model):
    """A pool file without ports."""

    instances: Annotated[tuple[SimulatedInstance, ...], Field(min_length=1)]
    router: RouterConfig = RouterConfig()


@dataclass(frozen=True)
class Pool:
    """What a file describes.

    Args:
        instances: to simulate.
        router: its configuration.
        engine: key of ENGINES whose defaults were used.
    """

    instances: tuple[SimInstance, ...]
    router: RouterConfig
    engine: str


def load_pool(path: str, engine: str | None = None, kv_tokens: int | None = None) -> Pool:
    """Read a pool.

    Args:
        path: of the file.
        engine: whose defaults fill in what it leaves open, `gpu` or `cpu`; None: cpu for a deployment.yaml, whose
            emulated engines run there, else gpu.
        kv_tokens: capacity of KV caches that it leaves open.

    Raises:
        ConfigError: the file is wrong, or an instance does not say which device it is.
    """
    deployment = _is_deployment(path)
    kind = engine or ("cpu" if deployment else "gpu")
    defaults = ENGINES[kind]
    if kv_tokens is not None:
        defaults = EngineDefaults(**{**vars(defaults), "kv_tokens": kv_tokens})
    if deployment:
        config = load_yaml(path, DeploymentConfig)
        instances = tuple(_deployed(config, i, defaults, path) for i in config.instances)
        router = config.gateway.router
    else:
        pool = load_yaml(path, SimulatedPool)
        instances = tuple(_simulated(instance, defaults) for instance in pool.instances)
        router = pool.router
    check_names(instances, ())
    return Pool(instances, router, kind)


def _is_deployment(path: str) -> bool:
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError):
        return False  # load_yaml says what is wrong
    if not isinstance(data, dict):
        return False
    instances = data.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else None
    return bool(_DEPLOYMENT_KEYS & data.keys()) or (isinstance(first, dict) and "port" in first)


def _simulated(instance: SimulatedInstance, defaults: EngineDefaults) -> SimInstance:
    given = {name: getattr(instance, name) for name in vars(defaults)}
    return SimInstance(
        name=instance.name,
        profile=load_profile(instance.emulate.profile),
        scale=instance.emulate.scale,
        prefix_caching=instance.prefix_caching,
        **vars(defaults) | {name: value for name, value in given.items() if value is not None},
    )


def _deployed(
    config: DeploymentConfig, instance: DeployedInstance, defaults: EngineDefaults, path: str
) -> SimInstance:
    where = f"{path}: instances.{instance.name}"
    if instance.emulate is None:
        raise ConfigError(
            f"{where}: a simulation needs to know the device; give `emulate: NAME[:SCALE]`, such as h100"
        )
    flags = normalise(config.args, "args") | normalise(instance.args, f"{where}.args")
    settings: dict[str, Any] = vars(defaults) | _engine_flags(flags, f"{where}.args")
    blocks = settings.pop("blocks", None)
    if blocks is not None:
        settings["kv_tokens"] = blocks * settings["block_size"]
    return SimInstance(
        name=instance.name,
        profile=load_profile(instance.emulate.profile),
        scale=instance.emulate.scale,
        **settings,
    )


_NUMBERS = {
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "block-size": "block_size",
    "num-gpu-blocks-override": "blocks",
}
_SWITCHES = {
    "async-scheduling": "async_scheduling",
    "enable-prefix-caching": "prefix_caching",
}


def _engine_flags(flags: Mapping[str, Flag], where: str) -> dict[str, Any]:
    """The vLLM flags that a simulation knows; others make no difference to it."""
    found: dict[str, Any] = {}
    for flag, name in _NUMBERS.items():
        value = flags.get(flag)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{where}.{flag}: must be a whole number, got {value!r}")
        found[name] = value
    for flag, name in _SWITCHES.items():
        for spelling, means in ((flag, True), (f"no-{flag}", False)):
            value = flags.get(spelling)
            if isinstance(value, bool):
                found[name] = value is means
    return found
