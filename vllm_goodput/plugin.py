# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Entry point of the `vllm.general_plugins` group and `enable()`, the one switch behind every front end.

vLLM calls `register()` in the API server, the engine core and every worker, perhaps several times. Until `enable()` has
published a configuration in the environment, it only adds the `--plugin` and `--goodput-*` flags. Child processes
inherit the environment, and `register()` reads nothing else. Only the standard library is imported at module level.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_goodput.config import GoodputConfig

NAME = "goodput"


def register() -> None:
    """Called by vLLM in each of its processes; inert unless enabled."""
    from vllm_goodput import envs
    from vllm_goodput.patches import registry

    registry.apply(registry.FLAGS)
    if envs.CONFIG in os.environ:
        registry.apply(registry.ENABLED)


def enable(config: GoodputConfig | Mapping[str, Any] | str | Path | None = None) -> GoodputConfig:
    """Turn the plugin on for engines started from now on by this process and its children.

    Args:
        config: settings as a GoodputConfig, a mapping of the same shape, the path of a goodput.yaml, or None for
            the defaults. Calling again replaces the settings.

    Raises:
        ConfigError: a setting is wrong.
        UnsupportedVLLMError: vLLM is missing or outside the supported range.
    """
    from vllm_goodput import compat, emulation, envs
    from vllm_goodput.patches import registry

    resolved = _resolve(config)
    compat.check_vllm()
    if resolved.emulate is not None:
        emulation.load_profile(resolved.emulate.profile)
    os.environ[envs.CONFIG] = resolved.model_dump_json()
    _publish_to_ray(os.environ)
    registry.apply(registry.FLAGS)
    registry.apply(registry.ENABLED)
    _announce(resolved)
    return resolved


def _announce(config: GoodputConfig) -> None:
    import logging

    slo = " ".join(f"{k.removesuffix('_ms')}:{v:g}" for k, v in config.slo.slo.as_dict().items())
    emulate = (
        f", emulating {config.emulate.profile} x{config.emulate.scale:g}" if config.emulate else ""
    )
    # Below vLLM's own logger, so that it looks and is configured like vLLM's lines.
    log = logging.getLogger("vllm.plugins.goodput")
    log.info("goodput plugin on: default SLO %s%s", slo or "none", emulate)


def active_config() -> GoodputConfig | None:
    """The configuration that is enabled in this process, or None."""
    from vllm_goodput import envs

    text = os.environ.get(envs.CONFIG)
    return None if text is None else _parse(text)


@lru_cache(maxsize=4)
def _parse(text: str) -> GoodputConfig:
    import json

    from vllm_goodput import envs
    from vllm_goodput.config import GoodputConfig, validate
    from vllm_goodput.errors import ConfigError

    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{envs.CONFIG}: not valid JSON: {error}") from None
    return validate(data, GoodputConfig, envs.CONFIG)


def _resolve(config: GoodputConfig | Mapping[str, Any] | str | Path | None) -> GoodputConfig:
    from vllm_goodput.config import GoodputConfig, load_yaml, validate

    if isinstance(config, GoodputConfig):
        return config
    if isinstance(config, str | Path):
        return load_yaml(config, GoodputConfig)
    return validate(dict(config or {}), GoodputConfig, "enable()")


def _publish_to_ray(environ: Any) -> None:
    """Have vLLM copy GOODPUT_* variables to Ray workers, beside whatever the user copies already."""
    from vllm_goodput import envs

    prefixes = [p for p in environ.get(envs.VLLM_RAY_PREFIXES, "").split(",") if p.strip()]
    if envs.PREFIX not in prefixes:
        environ[envs.VLLM_RAY_PREFIXES] = ",".join([*prefixes, envs.PREFIX])
