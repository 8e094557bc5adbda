# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Routing policies behind one interface; `make_policy` finds one by name."""

from __future__ import annotations

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.policies.base import Policy
from vllm_goodput.router.policies.baselines import GREEDY, rejecting
from vllm_goodput.router.policies.goodput import Goodput
from vllm_goodput.router.policies.just_enough import JustEnough
from vllm_goodput.router.policies.llumnix import Llumnix
from vllm_goodput.router.policies.rolling import Global

_ALL: tuple[type[Policy], ...] = (
    Goodput,
    Global,
    JustEnough,
    Llumnix,
    *GREEDY,
    *map(rejecting, GREEDY),
)
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}

__all__ = ["POLICIES", "Policy", "make_policy"]


def make_policy(config: RouterConfig) -> Policy:
    """The policy named in the configuration."""
    return POLICIES[config.policy](config)
