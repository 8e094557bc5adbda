# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The `--plugin` and `--goodput-*` flags of `vllm serve`, and what they mean."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

from vllm_goodput.config import GoodputConfig, SLOConfig, load_yaml, parse_emulate
from vllm_goodput.errors import ConfigError, GoodputError
from vllm_goodput.plugin import NAME, enable
from vllm_goodput.slo import parse_slo_args


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags in a group named goodput."""
    group = parser.add_argument_group(
        "goodput", "Options of the vllm-goodput plugin; they need --plugin goodput."
    )
    group.add_argument(
        "--plugin",
        metavar="NAME",
        help="Turn a plugin on: 'goodput' enables deadline awareness (vllm-goodput).",
    )
    group.add_argument(
        "--goodput-config",
        metavar="FILE",
        help="YAML file with the plugin's settings (goodput.yaml); flags override it.",
    )
    group.add_argument(
        "--goodput-slo",
        metavar="METRIC:MS",
        nargs="+",
        help="Default SLO of requests that state none, in milliseconds, e.g. ttft:2000 tpot:100 e2el:20000.",
    )
    group.add_argument(
        "--goodput-emulate",
        metavar="NAME[:SCALE]",
        help="Pad every engine step to a device profile's time x SCALE (default 1), e.g. l40s:4, or a profile's "
        ".yaml path. For tests and demonstrations on other hardware.",
    )


def enable_from_args(args: Any) -> None:
    """Call enable() if `--plugin goodput` was given; exit with one line if a flag is wrong."""
    try:
        config = config_from_args(args)
        if config is not None:
            _refuse_other_front_ends(args)
            enable(config)
    except GoodputError as error:
        _exit(error)


def config_from_args(args: Any) -> GoodputConfig | None:
    """The configuration that parsed flags ask for, or None when the plugin stays off.

    Raises:
        ConfigError: unknown plugin, a flag without `--plugin goodput`, or a wrong value.
    """
    plugin = getattr(args, "plugin", None)
    flags = {n: getattr(args, f"goodput_{n}", None) for n in ("config", "slo", "emulate")}
    if plugin is None:
        given = [f"--goodput-{n}" for n, value in flags.items() if value is not None]
        if given:
            raise ConfigError(f"{given[0]} needs --plugin {NAME}")
        return None
    if plugin != NAME:
        raise ConfigError(f"--plugin: unknown plugin {plugin!r}; the only one is {NAME!r}")
    config = (
        GoodputConfig() if flags["config"] is None else load_yaml(flags["config"], GoodputConfig)
    )
    updates: dict[str, Any] = {}
    if flags["slo"] is not None:
        slo = parse_slo_args(flags["slo"]).over(config.slo.slo)
        updates["slo"] = SLOConfig(**slo.as_dict())
    if flags["emulate"] is not None:
        updates["emulate"] = parse_emulate(flags["emulate"])
    return config.model_copy(update=updates)


def _refuse_other_front_ends(args: Any) -> None:
    """The plugin lives in vLLM's Python API server; other front ends would silently bypass it."""
    if getattr(args, "grpc", False):
        raise ConfigError("--plugin goodput does not work with --grpc; use the HTTP server")
    if getattr(args, "grpc_port", None) is not None or os.environ.get(
        "VLLM_USE_RUST_FRONTEND", "0"
    ).lower() in ("1", "true"):
        raise ConfigError(
            "--plugin goodput does not work with vLLM's Rust front end; unset VLLM_USE_RUST_FRONTEND"
        )


def _exit(error: GoodputError) -> NoReturn:
    print(f"vllm-goodput: error: {error}", file=sys.stderr, flush=True)
    raise SystemExit(error.exit_code)
