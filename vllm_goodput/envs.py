# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Environment variables this package reads. Names start with GOODPUT_ because vLLM warns about unknown VLLM_*."""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "GOODPUT_"
# The enabled configuration as JSON; written by enable(), inherited by vLLM's child processes, read by the plugin.
CONFIG = "GOODPUT_CONFIG"
# Shared by the gateway and its instances; guards /goodput/v1/* and internal request fields.
POOL_SECRET = "GOODPUT_POOL_SECRET"
# Set to 1 to run on a vLLM outside the declared range, at one's own risk.
ALLOW_ANY_VLLM = "GOODPUT_ALLOW_ANY_VLLM"

VLLM_RAY_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"


def pool_secret(environ: Mapping[str, str] = os.environ) -> str | None:
    """The pool's shared secret, or None when unset or empty."""
    return environ.get(POOL_SECRET) or None


def allow_any_vllm(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the version check is waived."""
    return environ.get(ALLOW_ANY_VLLM) == "1"
