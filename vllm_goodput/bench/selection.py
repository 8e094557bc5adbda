# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Choosing and reshaping the part of a trace that is replayed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_goodput.bench.row import TraceRow, rebased, trace_duration_s
from vllm_goodput.errors import ConfigError, TraceError
from vllm_goodput.slo import METRICS, SLO


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What to keep of a trace. Applied in this order: window, limit, time, lengths, SLOs.

    Args:
        start_s: begin of the window, seconds of trace time.
        duration_s: length of the window, seconds of trace time; None for the rest of the trace.
        limit: keep this many rows at most.
        time_scale: multiply arrival times; 0.5 replays twice as fast.
        request_rate: rescale the trace's own arrivals to this mean rate, requests per second.
        max_prompt_len: cut prompts to this many tokens (text in proportion).
        max_output_len: cap on output tokens.
        default_slo: SLO of rows that have none.
        slo_scale: multiply every SLO.

    Raises:
        ConfigError: a value is out of range, or both time_scale and request_rate are given.
    """

    start_s: float = 0.0
    duration_s: float | None = None
    limit: int | None = None
    time_scale: float | None = None
    request_rate: float | None = None
    max_prompt_len: int | None = None
    max_output_len: int | None = None
    default_slo: SLO = SLO()  # noqa: RUF009  (frozen)
    slo_scale: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start_s) and self.start_s >= 0):
            raise ConfigError(f"start_s must be a number >= 0, got {self.start_s!r}")
        for name in ("duration_s", "time_scale", "request_rate", "slo_scale"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a finite number > 0, got {value!r}")
        for name in ("limit", "max_prompt_len", "max_output_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value!r}")
        if self.time_scale is not None and self.request_rate is not None:
            raise ConfigError("time_scale and request_rate exclude each other")

    def apply(self, rows: Sequence[TraceRow], source: str = "trace") -> list[TraceRow]:
        """The selected rows, the first at 0 s.

        Raises:
            TraceError: the window holds no row.
            ConfigError: all rows arrive at once, so no rate can be set.
        """
        end_s = math.inf if self.duration_s is None else self.start_s + self.duration_s
        window = [row for row in rows if self.start_s <= row.arrival_s < end_s]
        if not window:
            raise TraceError(f"{source}: no row arrives from {self.start_s:g} to {end_s:g} s")
        kept = rebased(window[: self.limit])
        factor = self._time_factor(kept, source)
        return [self._reshaped(row, factor) for row in kept]

    def _time_factor(self, rows: Sequence[TraceRow], source: str) -> float:
        if self.request_rate is None:
            return 1.0 if self.time_scale is None else self.time_scale
        duration_s = trace_duration_s(rows)
        if duration_s == 0:
            raise ConfigError(
                f"request_rate: the {len(rows)} selected row(s) of {source} arrive at once"
            )
        return len(rows) / duration_s / self.request_rate

    def _reshaped(self, row: TraceRow, factor: float) -> TraceRow:
        prompt, prompt_len = row.prompt, row.prompt_len
        cap = self.max_prompt_len
        if cap is not None and prompt_len > cap:
            if isinstance(prompt, str):
                prompt = prompt[: max(1, len(prompt) * cap // prompt_len)]
            elif prompt is not None:
                prompt = prompt[:cap]
            prompt_len = cap
        output_len = row.output_len
        if self.max_output_len is not None:
            output_len = min(output_len, self.max_output_len)
        return replace(
            row,
            arrival_s=row.arrival_s * factor,
            prompt=prompt,
            prompt_len=prompt_len,
            output_len=output_len,
            slo=_scaled(row.slo or self.default_slo, self.slo_scale),
        )


def _scaled(slo: SLO, scale: float) -> SLO:
    if scale == 1.0 or not slo:
        return slo
    values = {f"{m}_ms": getattr(slo, f"{m}_ms") for m in METRICS}
    return SLO(**{name: v * scale for name, v in values.items() if v is not None})
