# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What a report of measurements must say about the instances they were made on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def emulation_note(name: str, info: Mapping[str, Any]) -> str | None:
    """One line about an instance's emulation, from its /goodput/v1/info; None where it is not emulated."""
    emulation = info.get("emulation")
    if not isinstance(emulation, Mapping):
        return None
    fraction = float(emulation.get("overrun_fraction", 0.0))
    verdict = "" if emulation.get("valid") else " - NOT A VALID EMULATION (limit 5 %)"
    return (
        f"{name}: emulated {emulation.get('device')} ({emulation.get('model')}), times x{emulation.get('scale'):g}, "
        f"{fraction:.1%} of {emulation.get('steps')} steps overran{verdict}"
    )
