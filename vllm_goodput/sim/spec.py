# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What is simulated: instances, what HTTP adds, and what happens to instances meanwhile. Times in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_goodput.emulation import DeviceProfile
from vllm_goodput.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SimInstance:
    """One vLLM instance.

    Args:
        name: unique in the pool.
        profile: device that it runs on.
        scale: factor on every time of the profile.
        max_num_seqs: sequences at once.
        max_num_batched_tokens: tokens per step.
        kv_tokens: capacity of the KV cache, tokens.
        block_size: tokens per KV block; vLLM takes 16 on GPUs, 128 on CPUs.
        prefix_caching: whether prompts that begin like earlier ones skip what is still cached.
        async_scheduling: whether a step is planned while the one before it runs, so that a request that arrives
            waits for one step more. vLLM does so on GPUs, not on CPUs.
    """

    name: str
    profile: DeviceProfile
    scale: float = 1.0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_tokens: int = 262_144
    block_size: int = 16
    prefix_caching: bool = True
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise self._error("scale", "a finite number > 0", self.scale)
        for field in ("max_num_seqs", "block_size"):
            if getattr(self, field) < 1:
                raise self._error(field, "at least 1", getattr(self, field))
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise self._error(
                "max_num_batched_tokens",
                f"at least max_num_seqs ({self.max_num_seqs})",
                self.max_num_batched_tokens,
            )
        if self.kv_tokens < self.block_size:
            raise self._error(
                "kv_tokens", f"at least block_size ({self.block_size})", self.kv_tokens
            )

    def _error(self, field: str, requirement: str, value: object) -> ConfigError:
        return ConfigError(f"instance {self.name}: {field} must be {requirement}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """What HTTP, tokenisation and detokenisation add, in gateway and API server together.

    The defaults are what benchmarks/sim_validation.py found for gateway, engines and client on two CPU cores.

    Args:
        request_s: from the router's decision until the engine knows the request.
        prompt_token_s: the same per prompt token.
        token_s: from the end of a step until its tokens are with the client.
        jitter_s: mean of a random time (exponential) that each request takes longer to reach the engine.
    """

    request_s: float = 0.01
    prompt_token_s: float = 3e-6
    token_s: float = 0.003
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("request_s", "prompt_token_s", "token_s", "jitter_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"overheads: {name} must be a number >= 0, got {value!r}")

    def submit_s(self, prompt_len: int) -> float:
        """From the decision until the engine knows a request of this length."""
        return self.request_s + self.prompt_token_s * prompt_len


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something that happens to an instance.

    Args:
        at_s: when, on the trace's clock.
        instance: its name.
        slowdown: its steps take so many times as long from now on; None leaves that as it is.
        alive: False: it dies, and what it was doing is lost; True: it is back, with an empty cache.
    """

    at_s: float
    instance: str
    slowdown: float | None = None
    alive: bool | None = None

    def __post_init__(self) -> None:
        if self.slowdown is not None and not (math.isfinite(self.slowdown) and self.slowdown > 0):
            raise ConfigError(f"change: slowdown must be a number > 0, got {self.slowdown!r}")


@dataclass(frozen=True, kw_only=True)
class SimOptions:
    """How a pool is simulated.

    Args:
        progress_interval_s: the router is told of token counts so often; 0: before every decision.
        overheads: of HTTP.
        probe: measure every instance's speed before the trace, as the gateway does; else the router starts blind.
        probe_word_tokens: tokens per word of the probes' prompts; about 6 with a byte-level tokenizer.
        migration: whether running requests move when the router says so.
        rectify_interval_s: the router is asked so often which should; None: as its configuration says.
        migration_delay_s: from leaving the source until the target knows the request; None: as its configuration says.
        changes: what happens to instances.
        timeout_s: clients give up after this long; None: never.
        share_session_prefix: made-up prompts of one session begin alike, as in `bench run`.
        streaming: answers are streamed; else the router hears of their ends only.
        model: name that requests ask for.
        remeasure_s: an idle instance is measured again, at most this often, when requests were rejected as infeasible
            since it was measured, as the gateway does; None: never.
        seed: of the jitter in `overheads`.
    """

    progress_interval_s: float = 0.25
    overheads: Overheads = Overheads()
    probe: bool = True
    probe_word_tokens: float = 1.0
    migration: bool = True
    rectify_interval_s: float | None = None
    migration_delay_s: float | None = None
    changes: tuple[Change, ...] = ()
    timeout_s: float | None = None
    share_session_prefix: bool = True
    streaming: bool = True
    model: str | None = None
    remeasure_s: float | None = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.progress_interval_s >= 0:
            raise ConfigError(
                f"progress_interval_s must be at least 0, got {self.progress_interval_s!r}"
            )
        for name in ("rectify_interval_s", "timeout_s", "remeasure_s", "probe_word_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be greater than 0, got {value!r}")


def check_names(instances: Iterable[SimInstance], changes: Iterable[Change]) -> None:
    """Make sure that names are unique and changes refer to them.

    Raises:
        ConfigError: they do not.
    """
    names: set[str] = set()
    for instance in instances:
        if instance.name in names:
            raise ConfigError(f"instances: the name {instance.name!r} is used twice")
        names.add(instance.name)
    if not names:
        raise ConfigError("instances: at least one is required")
    for change in changes:
        if change.instance not in names:
            raise ConfigError(
                f"changes: no instance {change.instance!r}; there are {', '.join(sorted(names))}"
            )
