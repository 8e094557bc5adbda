# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Simulation of a pool of vLLM instances that drives the real Router. Seconds inside; nothing of vLLM is needed."""

from __future__ import annotations

from vllm_goodput.sim.pool import Simulation, simulate
from vllm_goodput.sim.spec import Change, Overheads, SimInstance, SimOptions

__all__ = ["Change", "Overheads", "SimInstance", "SimOptions", "Simulation", "simulate"]
