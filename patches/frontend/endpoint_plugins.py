# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Loads our HTTP endpoints and middleware into vLLM's API server without touching VLLM_PLUGINS."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from vllm_goodput.patches.base import Patch, Target


def _wrap(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @wraps(original)
    def load_endpoint_plugins(supported_tasks: Any = None) -> list[Any]:
        from vllm_goodput.instance.endpoint import GoodputEndpoint

        return [*original(supported_tasks), GoodputEndpoint()]

    return load_endpoint_plugins


PATCH = Patch(
    name="endpoint_plugins",
    targets=(
        Target(
            "vllm.plugins:load_endpoint_plugins",
            "(supported_tasks: 'tuple[SupportedTask, ...] | None'=None)",
            _wrap,
        ),
    ),
    why="vLLM loads endpoint plugins only when they are named in VLLM_PLUGINS, which is the allowlist of every plugin "
    "group and would drop the user's other plugins.",
    how="Appends our endpoint plugin to whatever the original loads.",
    supported=">=0.32,<0.34",
    remove_when="endpoint plugins get an allowlist of their own.",
)
