# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Output-length prediction: the interface the router uses, and the running per-task histogram behind it."""

from vllm_goodput.predictor.base import LengthDistribution, LengthPredictor
from vllm_goodput.predictor.histogram import TaskHistogram

__all__ = ["LengthDistribution", "LengthPredictor", "TaskHistogram"]
