# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Turns parsed `--plugin` and `--goodput-*` flags into one `enable()` call before any engine is built."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm_goodput.patches.base import Patch, Target


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def from_cli_args(cls: Any, args: Any) -> Any:
        from vllm_goodput.cli.flags import enable_from_args

        enable_from_args(args)
        return original(cls, args)

    return from_cli_args


PATCH = Patch(
    name="from_cli_args",
    targets=(
        Target(
            "vllm.engine.arg_utils:EngineArgs.from_cli_args",
            "(cls, args: argparse.Namespace)",
            _wrap,
        ),
    ),
    why="EngineArgs has no goodput fields, so the flags must act before it is built; every vLLM command passes here.",
    how="Reads the flags, calls enable() or exits with one line, then calls the original.",
    supported=">=0.32,<0.34",
    remove_when="vLLM lets general plugins register command-line arguments.",
)
