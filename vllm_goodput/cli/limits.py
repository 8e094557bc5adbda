# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Limits of this process."""

from __future__ import annotations

from contextlib import suppress


def allow_many_connections() -> None:
    """Raise the limit on open files as far as allowed: every request under way holds a connection or two."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
