# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Lets the API server ask the engine core, a separate process, for this package's own statistics."""

from __future__ import annotations

from typing import Any

from vllm_goodput.patches.base import Patch, Target


def _goodput_stats(_: Any) -> Any:
    def goodput_stats(self: Any) -> dict[str, Any]:
        """Statistics of this engine core as plain JSON types."""
        from vllm_goodput.emulation import padder_of

        padder = padder_of(self.scheduler)
        return {"emulation": None if padder is None else padder.stats()}

    return goodput_stats


PATCH = Patch(
    name="stats_utility",
    targets=(Target("vllm.v1.engine.core:EngineCore.goodput_stats", None, _goodput_stats),),
    why="Emulation statistics live in the engine core; collective_rpc reaches only workers.",
    how="Adds a method that the client's call_utility_async can name; nothing of vLLM is replaced.",
    supported=">=0.32,<0.34",
    remove_when="vLLM lets plugins publish statistics from the engine core.",
)
