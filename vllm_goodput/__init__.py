# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""vllm-goodput: more requests per second that meet their deadlines, on vLLM.

Importing this package imports neither vllm nor torch; names are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {"SLO": "vllm_goodput.slo", "enable": "vllm_goodput.plugin"}

__all__ = ["SLO", "__version__", "enable"]

if TYPE_CHECKING:
    from vllm_goodput.plugin import enable
    from vllm_goodput.slo import SLO


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
