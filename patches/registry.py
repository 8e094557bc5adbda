# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The register of all patches. A patch file that is not listed here is an error in the tests.

`FLAGS` are applied in every process in which vLLM loads plugins and only add command-line flags; `ENABLED` are applied
once the plugin has been switched on.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from vllm_goodput.patches.base import Patch

FLAGS = ("frontend.add_cli_args", "frontend.from_cli_args")
ENABLED = (
    "frontend.endpoint_plugins",
    "engine.step_padding",
    "engine.emulated_wait",
    "engine.stats_utility",
)


def load(name: str) -> Patch:
    """Return the patch defined in the file `name`, e.g. `engine.step_padding`."""
    patch = import_module(f"vllm_goodput.patches.{name}").PATCH
    assert isinstance(patch, Patch)
    return patch


def apply(names: Sequence[str]) -> None:
    """Apply patches by name, in order.

    Raises:
        UnsupportedVLLMError: a target does not exist in the installed vLLM.
    """
    for name in names:
        load(name).apply()


def everything() -> list[Patch]:
    """All registered patches."""
    return [load(name) for name in (*FLAGS, *ENABLED)]
