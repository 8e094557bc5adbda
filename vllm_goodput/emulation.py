# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Emulate a device: every engine step takes at least the profile's time x scale.

The padder sleeps away the difference between a step's real time and the profile's; it never adds to it. A step that
is slower than its profile is an overrun; a run with more than 5 % overruns is not a valid emulation. Profiles give
the time of a step as base + prefill tokens x per_prefill_token + sequences in the batch x per_running_seq.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from vllm_goodput.config import Model, Number, load_yaml
from vllm_goodput.errors import ConfigError

MAX_VALID_OVERRUN_FRACTION = 0.05


class DeviceProfile(Model):
    """Speed of one device for one model; times in seconds. `sources` says where each number comes from."""

    device: str
    model: str
    base_s: Number
    per_prefill_token_s: Number
    per_running_seq_s: Number
    sources: dict[str, str]

    def step_s(self, work: StepWork) -> float:
        """Time of one step, seconds."""
        return (
            self.base_s
            + work.prefill_tokens * self.per_prefill_token_s
            + work.sequences * self.per_running_seq_s
        )


@dataclass(frozen=True)
class StepWork:
    """What one step computes: prompt tokens prefilled, and sequences in the batch."""

    prefill_tokens: int
    sequences: int


def profile_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(
        p.name.removesuffix(".yaml") for p in _shipped().iterdir() if p.name.endswith(".yaml")
    )


def load_profile(name: str) -> DeviceProfile:
    """Load a shipped profile by name, or a profile file by path (a name with a slash or ending in .yaml).

    Raises:
        ConfigError: unknown name, or a file that is not a profile.
    """
    if "/" in name or name.endswith(".yaml"):
        return load_yaml(name, DeviceProfile)
    if name not in profile_names():
        raise ConfigError(
            f"emulate: no profile {name!r}; shipped are {', '.join(profile_names())}; or give the path of a .yaml file"
        )
    return load_yaml(str(_shipped() / f"{name}.yaml"), DeviceProfile)


@dataclass
class StepPadder:
    """Pads steps to a profile. Not thread-safe: one engine loop drives it.

    Args:
        profile: device to emulate.
        scale: factor on every time of the profile.
        clock, sleep: injected for tests; seconds.
    """

    profile: DeviceProfile
    scale: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    steps: int = 0
    overruns: int = 0
    overrun_s: float = 0.0
    emulated_s: float = 0.0
    _open: dict[int, tuple[float, float]] = field(default_factory=dict)
    _last_end_s: float = float("-inf")
    _busy: bool = False

    def now_s(self) -> float:
        """The padder's clock."""
        return self.clock()

    def begin(self, key: int, work: StepWork, started_s: float) -> None:
        """A step was scheduled at `started_s`; steps without work are not padded."""
        if work.sequences:
            self._open[key] = (started_s, self.profile.step_s(work) * self.scale)

    def finish(self, key: int) -> None:
        """The step's results are there: sleep until its emulated end."""
        if key not in self._open:
            return
        started_s, cost_s = self._open.pop(key)
        # While work is queued, a step starts where the last one ended: a device does not wait for the host.
        if self._busy or started_s < self._last_end_s:
            started_s = self._last_end_s
        end_s, now_s = started_s + cost_s, self.clock()
        self.steps += 1
        self.emulated_s += cost_s
        if now_s <= end_s:
            self.sleep(end_s - now_s)
            self._last_end_s = end_s
        else:
            self.overruns += 1
            self.overrun_s += now_s - end_s
            self._last_end_s = now_s

    def set_busy(self, busy: bool) -> None:
        """Whether requests remain after the step."""
        self._busy = busy

    def stats(self) -> dict[str, Any]:
        """Counters as plain JSON types."""
        fraction = self.overruns / self.steps if self.steps else 0.0
        return {
            "device": self.profile.device,
            "model": self.profile.model,
            "scale": self.scale,
            "steps": self.steps,
            "overruns": self.overruns,
            "overrun_fraction": fraction,
            "overrun_s": self.overrun_s,
            "emulated_s": self.emulated_s,
            "valid": fraction <= MAX_VALID_OVERRUN_FRACTION,
        }


def step_work(output: Any) -> StepWork:
    """Work of a vLLM SchedulerOutput. A sequence scheduled with one token decodes; with more, it prefills."""
    spec = output.scheduled_spec_decode_tokens
    counts = output.num_scheduled_tokens
    prefill = sum(n for request_id, n in counts.items() if n > 1 and request_id not in spec)
    return StepWork(prefill, len(counts))


def padder_of(scheduler: Any) -> StepPadder | None:
    """The padder of a scheduler, made on first use; None when emulation is off."""
    padder: StepPadder | None = scheduler.__dict__.get("_goodput_padder", _UNSET)
    if padder is _UNSET:
        padder = scheduler._goodput_padder = _configured_padder()
    return padder


_UNSET: Any = object()


def _configured_padder() -> StepPadder | None:
    from vllm_goodput.plugin import active_config

    config = active_config()
    if config is None or config.emulate is None:
        return None
    return StepPadder(load_profile(config.emulate.profile), config.emulate.scale)


def _shipped() -> Path:
    return Path(str(files("vllm_goodput") / "profiles"))
