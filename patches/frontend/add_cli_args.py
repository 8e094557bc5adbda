# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Adds `--plugin` and the `--goodput-*` flags to every vLLM command that takes engine arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm_goodput.patches.base import Patch, Target


def _wrap(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(original)
    def add_cli_args(parser: Any) -> Any:
        from vllm_goodput.cli.flags import add_flags

        parser = original(parser)
        add_flags(parser)
        return parser

    return add_cli_args


PATCH = Patch(
    name="add_cli_args",
    targets=(
        Target(
            "vllm.engine.arg_utils:EngineArgs.add_cli_args",
            "(parser: FlexibleArgumentParser)",
            _wrap,
        ),
    ),
    why="vLLM has no hook for a plugin's own flags; AsyncEngineArgs.add_cli_args loads general plugins before it "
    "builds the parser, so a wrapped EngineArgs.add_cli_args is reached in time.",
    how="Calls the original, then adds an argument group named goodput.",
    supported=">=0.32,<0.34",
    remove_when="vLLM lets general plugins register command-line arguments.",
)
