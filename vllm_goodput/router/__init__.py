# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Routing decisions, pure: no I/O, clock and seed injected, the same calls give the same decisions."""

from vllm_goodput.router.router import Router
from vllm_goodput.router.types import Decision, Dispatch, Hold, Prediction, Reject, RequestInfo

__all__ = ["Decision", "Dispatch", "Hold", "Prediction", "Reject", "RequestInfo", "Router"]
