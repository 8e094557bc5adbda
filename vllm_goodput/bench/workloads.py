# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A seeded generator of agentic traces: several task types, sessions of several turns, Poisson or bursty arrivals.

Arrivals are a renewal process whose gaps are gamma-distributed, so rate and burstiness are exact; an arrival continues
the longest-waiting open session of its task whose last turn is at least `turn_gap_s` ago, or else begins a new one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from vllm_goodput.bench.row import TraceRow
from vllm_goodput.bench.tasks import TASKS, LogNormal, TaskSpec
from vllm_goodput.errors import ConfigError
from vllm_goodput.slo import SLO

SLORule = Callable[[str, int, int], SLO]
MAX_REQUESTS = 10_000_000


@dataclass(frozen=True)
class ReferenceDevice:
    """Isolated latency of the device that generated SLOs refer to: ttft + tpot * output_len.

    Args:
        ttft_s: time to first token of an empty prompt.
        tpot_s: time per output token.
        per_prompt_token_s: added to the TTFT per prompt token.
    """

    ttft_s: float = 0.05
    tpot_s: float = 0.02
    per_prompt_token_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "per_prompt_token_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"reference device: {name} must be a number >= 0, got {value!r}")

    def e2el_s(self, prompt_len: int, output_len: int) -> float:
        """Isolated end-to-end latency, seconds."""
        return self.ttft_s + self.per_prompt_token_s * prompt_len + self.tpot_s * output_len


def agentic_mix(
    seed: int,
    duration_s: float,
    rate: float,
    *,
    mix: Mapping[str, float] | None = None,
    tasks: Mapping[str, TaskSpec] = TASKS,
    cv: float = 1.0,
    prompt_scale: float = 1.0,
    output_scale: float = 1.0,
    max_prompt_len: int | None = None,
    max_output_len: int | None = None,
    turn_gap_s: float = 5.0,
    slo: SLORule | None = None,
    slo_scale: float | None = None,
    reference: ReferenceDevice = ReferenceDevice(),
) -> list[TraceRow]:
    """Generate a trace; equal arguments give equal traces.

    Args:
        seed: of everything random.
        duration_s: length of the trace, seconds.
        rate: mean request rate, requests per second (every turn is a request).
        mix: weight of each task among requests; None weighs all of `tasks` alike.
        tasks: task types by name.
        cv: coefficient of variation of the gaps between arrivals; 1 is Poisson, more is burstier.
        prompt_scale: multiplies first prompts and growths.
        output_scale: multiplies outputs.
        max_prompt_len: cap, tokens.
        max_output_len: cap, tokens.
        turn_gap_s: least time between the turns of a session, seconds.
        slo: gives a request's SLO from (task, prompt_len, output_len).
        slo_scale: where `slo` is None, sets the E2EL SLO to slo_scale x the reference device's isolated E2EL.
        reference: that device.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check_positive(
        duration_s=duration_s,
        rate=rate,
        cv=cv,
        prompt_scale=prompt_scale,
        output_scale=output_scale,
        slo_scale=1.0 if slo_scale is None else slo_scale,
        max_prompt_len=1 if max_prompt_len is None else max_prompt_len,
        max_output_len=1 if max_output_len is None else max_output_len,
    )
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, got {seed!r}")
    if duration_s * rate > MAX_REQUESTS:
        raise ConfigError(
            f"duration_s * rate must be at most {MAX_REQUESTS} requests, got {duration_s * rate:g}"
        )
    names, weights = _weights(mix, tasks)
    rng = np.random.default_rng(seed)
    lengths = _Lengths(rng, prompt_scale, output_scale, max_prompt_len, max_output_len)
    rule = slo or _rule(slo_scale, reference)
    sessions = {name: _Sessions(name, tasks[name], lengths, turn_gap_s) for name in names}
    rows = []
    for arrival_s in _arrivals(rng, duration_s, rate, cv):
        task = names[int(rng.choice(len(names), p=weights))]
        session, prompt_len, output_len = sessions[task].next_turn(arrival_s)
        rows.append(
            TraceRow(
                arrival_s=arrival_s,
                task=task,
                session=session,
                prompt_len=prompt_len,
                output_len=output_len,
                slo=rule(task, prompt_len, output_len),
            )
        )
    return rows


@dataclass
class _Session:
    name: str
    turns_left: int
    context_len: int
    last_s: float


@dataclass(frozen=True)
class _Lengths:
    rng: np.random.Generator
    prompt_scale: float
    output_scale: float
    max_prompt_len: int | None
    max_output_len: int | None

    def prompt(self, fit: LogNormal, context_len: int = 0) -> int:
        return _capped(context_len + self._draw(fit, self.prompt_scale), self.max_prompt_len)

    def output(self, fit: LogNormal) -> int:
        return _capped(self._draw(fit, self.output_scale), self.max_output_len)

    def turns(self, mean: float) -> int:
        return int(self.rng.geometric(1 / mean)) if mean > 1 else 1

    def _draw(self, fit: LogNormal, scale: float) -> int:
        return max(1, round(fit.median * scale * math.exp(fit.log_sigma * self.rng.normal())))


class _Sessions:
    """The open sessions of one task, longest-waiting first."""

    def __init__(self, task: str, spec: TaskSpec, lengths: _Lengths, turn_gap_s: float) -> None:
        self._task = task
        self._spec = spec
        self._lengths = lengths
        self._turn_gap_s = turn_gap_s
        self._open: deque[_Session] = deque()
        self._count = 0

    def next_turn(self, now_s: float) -> tuple[str, int, int]:
        """Session name, prompt length and output length of a request arriving now."""
        if self._open and now_s - self._open[0].last_s >= self._turn_gap_s:
            session = self._open.popleft()
            prompt_len = self._lengths.prompt(self._spec.growth, session.context_len)
        else:
            turns = self._lengths.turns(self._spec.mean_turns)
            session = _Session(f"{self._task}-{self._count}", turns, 0, now_s)
            self._count += 1
            prompt_len = self._lengths.prompt(self._spec.prompt)
        output_len = self._lengths.output(self._spec.output)
        session.turns_left -= 1
        session.context_len = prompt_len + output_len
        session.last_s = now_s
        if session.turns_left > 0:
            self._open.append(session)
        return session.name, prompt_len, output_len


def _arrivals(
    rng: np.random.Generator, duration_s: float, rate: float, cv: float
) -> Iterator[float]:
    """Arrival times in [0, duration_s), the first at 0."""
    shape = 1 / cv**2
    now_s = 0.0
    while now_s < duration_s:
        yield round(now_s, 6)
        now_s += float(rng.gamma(shape, 1 / (rate * shape)))


def _weights(
    mix: Mapping[str, float] | None, tasks: Mapping[str, TaskSpec]
) -> tuple[list[str], list[float]]:
    chosen = dict.fromkeys(tasks, 1.0) if mix is None else dict(mix)
    for name, weight in chosen.items():
        if name not in tasks:
            raise ConfigError(f"mix: unknown task {name!r}; expected one of {', '.join(tasks)}")
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"mix: the weight of {name} must be a number >= 0, got {weight!r}")
    total = sum(chosen.values())
    if total <= 0:
        raise ConfigError(f"mix: at least one weight must be greater than 0, got {chosen!r}")
    return list(chosen), [weight / total for weight in chosen.values()]


def _rule(slo_scale: float | None, reference: ReferenceDevice) -> SLORule:
    if slo_scale is None:
        return lambda task, prompt_len, output_len: SLO()
    scale_ms = slo_scale * 1e3
    return lambda task, prompt_len, output_len: SLO(
        e2el_ms=round(scale_ms * reference.e2el_s(prompt_len, output_len), 3)
    )


def _capped(length: int, cap: int | None) -> int:
    return length if cap is None else min(length, cap)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} must be a finite number > 0, got {value!r}")
