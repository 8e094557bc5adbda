# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Routing policies behind one interface; `make_policy` finds one by name."""

from __future__ import annotations

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.policies.base import Candidate, Policy, Query
from vllm_goodput.router.policies.baselines import LeastRequest, RoundRobin, WeightedLeastRequest
from vllm_goodput.router.policies.goodput import Goodput
from vllm_goodput.router.policies.just_enough import JustEnough

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Goodput, JustEnough, RoundRobin, LeastRequest, WeightedLeastRequest)
}

__all__ = ["POLICIES", "Candidate", "Policy", "Query", "make_policy"]


def make_policy(config: RouterConfig) -> Policy:
    """The policy named in the configuration."""
    return POLICIES[config.policy](config)
