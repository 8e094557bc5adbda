# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput route`: the gateway over a pool."""

from __future__ import annotations

import argparse
import logging

import uvloop

from vllm_goodput.cli.limits import allow_many_connections
from vllm_goodput.config import PoolConfig, load_yaml, validate
from vllm_goodput.gateway.app import serve
from vllm_goodput.router.policies import POLICIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags; they override the file."""
    parser.add_argument("--config", required=True, metavar="FILE", help="pool.yaml")
    parser.add_argument("--host", default=argparse.SUPPRESS, help="address to listen on")
    parser.add_argument(
        "--port", type=int, default=argparse.SUPPRESS, help="port to listen on; 0 picks a free one"
    )
    parser.add_argument(
        "--policy", choices=sorted(POLICIES), default=argparse.SUPPRESS, help="routing policy"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="verbosity of the log on standard error; prompts are never logged",
    )


def run(args: argparse.Namespace) -> int:
    """Run the gateway until it is told to stop."""
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    allow_many_connections()
    uvloop.run(serve(config_from_args(args)))
    return 0


def config_from_args(args: argparse.Namespace) -> PoolConfig:
    """The file's configuration with the flags over it.

    Raises:
        ConfigError: the file or a flag is wrong.
    """
    data = load_yaml(args.config, PoolConfig).model_dump()
    given = vars(args)
    data.update({name: given[name] for name in ("host", "port") if name in given})
    if "policy" in given:
        data["router"] = {**data["router"], "policy": given["policy"]}
    return validate(data, PoolConfig, "command line")
