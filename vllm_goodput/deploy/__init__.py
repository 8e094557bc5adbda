# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A whole deployment on one machine: vLLM instances and the gateway over them, as child processes.

`vllm-goodput up` and `async with Deployment(config)` are the two ways in. Nothing is ever
restarted; whatever was started is stopped again, with everything it started itself.
"""

from __future__ import annotations

from vllm_goodput.deploy.plan import DEFAULT_COMMAND, Plan, ProcessSpec, make_plan
from vllm_goodput.deploy.report import PlainReporter, Reporter
from vllm_goodput.deploy.supervisor import Deployment

__all__ = [
    "DEFAULT_COMMAND",
    "Deployment",
    "PlainReporter",
    "Plan",
    "ProcessSpec",
    "Reporter",
    "make_plan",
]
