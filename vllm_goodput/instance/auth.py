# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The pool's shared secret: who may use internal endpoints and fields."""

from __future__ import annotations

import hmac

from vllm_goodput import envs
from vllm_goodput.errors import ForbiddenError

SECRET_HEADER = "x-goodput-pool-secret"


def is_pool(received: str | None, secret: str | None) -> bool:
    """Whether a caller knows the secret; never when none is set."""
    if not secret or received is None:
        return False
    return hmac.compare_digest(_bytes(received), _bytes(secret))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # headers may hold any bytes


def require_pool(received: str | None, what: str) -> None:
    """Let only the pool pass.

    Raises:
        ForbiddenError: no secret is set here, or the caller's differs.
    """
    secret = envs.pool_secret()
    if secret is None:
        raise ForbiddenError(f"{what} is closed: set {envs.POOL_SECRET} for the whole pool")
    if not is_pool(received, secret):
        raise ForbiddenError(f"{what} needs the pool's secret in {SECRET_HEADER}")
