# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Output lengths so far in each agent session (`csrc/sessions.*`).

`SessionLengths` are the running figures of one session, `Sessions` those of the most recently active ones. The latest
lengths, their mean, extremes and spread are features of the session's next request; the mean residual, in which a
single outlier counts for little, corrects its prediction (see online.py).
"""

from __future__ import annotations

from vllm_goodput._C import SessionLengths, Sessions

__all__ = ["SessionLengths", "Sessions"]
