# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From the command line of `vllm-goodput simulate` to a Study."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from vllm_goodput.bench import ReferenceDevice, Selection, TraceRow, agentic_mix, load_trace
from vllm_goodput.emulation import StepWork
from vllm_goodput.errors import ConfigError
from vllm_goodput.sim import flags
from vllm_goodput.sim.pool_file import Pool, load_pool
from vllm_goodput.sim.spec import Change, Overheads, SimInstance, SimOptions, check_names
from vllm_goodput.sim.study import Study
from vllm_goodput.slo import parse_slo_args


def make_study(args: argparse.Namespace) -> tuple[Study, Pool]:
    """What the command line asks for.

    Raises:
        ConfigError: a file or a flag is wrong.
        TraceError: the trace cannot be read.
    """
    pool = load_pool(args.pool, args.engine, _positive(args.kv_tokens, "--kv-tokens"))
    policies = list(dict.fromkeys(args.policy or [pool.router.policy]))
    if args.baseline is not None and args.baseline not in policies:
        raise ConfigError(
            f"--baseline: expected one of {', '.join(policies)}, got {args.baseline!r}"
        )
    options = _options(args)
    check_names(pool.instances, options.changes)
    router = pool.router.model_copy(
        update={
            "use_max_tokens": args.use_max_tokens,
            # A simulation is no traffic to learn from later.
            "predictor": pool.router.predictor.model_copy(update={"log": None}),
        }
    )
    seeds = list(dict.fromkeys(args.seeds))
    if min(seeds) < 0:
        raise ConfigError(f"--seeds must be at least 0, got {min(seeds)}")
    trace = _trace(args, pool)
    trace(seeds[0])  # what is wrong with it is better told now
    return Study(pool.instances, router, policies, seeds, trace, options), pool


def second_fastest(instances: Sequence[SimInstance]) -> ReferenceDevice:
    """Isolated latencies of the instance with the second-shortest steps; of the only one if there is one."""
    by_speed = sorted(instances, key=lambda i: i.profile.base_s * i.scale)
    spec = by_speed[min(1, len(by_speed) - 1)]
    step_s = spec.profile.step_s(StepWork(0, 1)) * spec.scale
    # The first token comes from the prefill's step, so an output of n tokens takes n steps in all.
    return ReferenceDevice(0.0, step_s, spec.profile.per_prefill_token_s * spec.scale)


def _options(args: argparse.Namespace) -> SimOptions:
    defaults = Overheads()
    overheads = replace(
        defaults,
        request_s=_milliseconds(
            args.request_overhead_ms, "--request-overhead-ms", defaults.request_s
        ),
        token_s=_milliseconds(args.token_overhead_ms, "--token-overhead-ms", defaults.token_s),
        jitter_s=_milliseconds(args.jitter_ms, "--jitter-ms", 0.0),
    )
    return SimOptions(
        overheads=overheads,
        probe_word_tokens=args.probe_word_tokens,
        migration=args.migration,
        changes=(*_slow(args.slow), *_down(args.down)),
        timeout_s=args.timeout_s,
        share_session_prefix=args.share_session_prefix,
    )


def _trace(args: argparse.Namespace, pool: Pool) -> Callable[[int], list[TraceRow]]:
    """Gives the trace of a seed."""
    given = vars(args)
    wrong = flags.GENERATED if args.trace is not None else flags.TRACE
    for name in wrong:
        if name in given:
            kind = "a generated workload" if args.trace is not None else "a trace"
            raise ConfigError(f"--{name.replace('_', '-')} is for {kind} only")
    if args.trace is None:
        return lru_cache(maxsize=1)(lambda seed: _generate(args, pool, seed))
    rows = _load(args)
    return lambda seed: rows


def _load(args: argparse.Namespace) -> list[TraceRow]:
    given = flags.TRACE | vars(args)
    selection = Selection(
        start_s=given["start_s"],
        duration_s=args.duration_s,
        limit=given["limit"],
        time_scale=given["time_scale"],
        request_rate=given["request_rate"],
        max_prompt_len=args.max_prompt_len,
        max_output_len=args.max_output_len,
        default_slo=parse_slo_args(given["goodput"], "--goodput"),
        slo_scale=1.0 if args.slo_scale is None else args.slo_scale,
    )
    return load_trace(args.trace, format=given["format"], selection=selection)


def _generate(args: argparse.Namespace, pool: Pool, seed: int) -> list[TraceRow]:
    given = flags.GENERATED | vars(args)
    return agentic_mix(
        seed,
        flags.GENERATED_DURATION_S if args.duration_s is None else args.duration_s,
        given["rate"],
        mix=_mix(given["mix"]),
        cv=given["cv"],
        prompt_scale=given["prompt_scale"],
        output_scale=given["output_scale"],
        max_prompt_len=args.max_prompt_len,
        max_output_len=args.max_output_len,
        turn_gap_s=given["turn_gap_s"],
        slo_scale=flags.GENERATED_SLO_SCALE if args.slo_scale is None else args.slo_scale,
        reference=_reference(given, pool),
    )


def _reference(given: Mapping[str, float | None], pool: Pool) -> ReferenceDevice:
    names = ("ref_ttft_ms", "ref_tpot_ms", "ref_prompt_ms")
    values = [given[name] for name in names]
    if all(value is None for value in values):
        return second_fastest(pool.instances)
    ttft_ms, tpot_ms, prompt_ms = (0.0 if value is None else value for value in values)
    return ReferenceDevice(ttft_ms / 1e3, tpot_ms / 1e3, prompt_ms / 1e3)


def _mix(texts: Sequence[str] | None) -> dict[str, float] | None:
    if texts is None:
        return None
    mix = {}
    for text in texts:
        name, _, weight = text.partition("=")
        mix[name] = _number(weight, f"--mix: expected TASK=WEIGHT, got {text!r}")
    return mix


def _slow(texts: Sequence[str]) -> list[Change]:
    changes = []
    for text in texts:
        message = f"--slow: expected NAME=FACTOR@S, got {text!r}"
        name, _, rest = text.partition("=")
        factor, at, at_s = rest.partition("@")
        if not at:
            raise ConfigError(message)
        changes.append(
            Change(at_s=_number(at_s, message), instance=name, slowdown=_number(factor, message))
        )
    return changes


def _down(texts: Sequence[str]) -> list[Change]:
    changes = []
    for text in texts:
        message = f"--down: expected NAME@S or NAME@S-S, got {text!r}"
        name, at, times = text.rpartition("@")
        from_s, dash, to_s = times.partition("-")
        if not at:
            raise ConfigError(message)
        changes.append(Change(at_s=_number(from_s, message), instance=name, alive=False))
        if dash:
            changes.append(Change(at_s=_number(to_s, message), instance=name, alive=True))
            if changes[-1].at_s <= changes[-2].at_s:
                raise ConfigError(f"{message}: the second time must be later")
    return changes


def _number(text: str, message: str) -> float:
    """A finite number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(message) from None
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(message)
    return value


def _positive(value: int | None, flag: str) -> int | None:
    if value is not None and value < 1:
        raise ConfigError(f"{flag} must be at least 1, got {value}")
    return value


def _milliseconds(value: float | None, flag: str, default_s: float) -> float:
    if value is None:
        return default_s
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{flag} must be a number >= 0, got {value}")
    return value / 1e3
