# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The traces of `benchmarks.pool_live`: agentic requests with text prompts, and their SLOs.

Prompts are text, since two of the peer routers refuse token ids. The tiny model's tokenizer makes one token of every
byte, so a made-up prompt of n ASCII characters is exactly n tokens. Turns of a session begin alike, as an agent's do.
Every cell has a text of its own, so that none meets a prefix cache warmed by another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vllm_goodput.bench import TraceRow, agentic_mix
from vllm_goodput.emulation import DeviceProfile, StepWork, load_profile
from vllm_goodput.slo import SLO

DEVICES = ("h100", "a100", "l40s", "t4")
MAX_NUM_SEQS = 16
MAX_PROMPT_LEN, MAX_OUTPUT_LEN = 2000, 200
# Letters about as frequent as in English, with a space in seven.
ALPHABET = np.frombuffer(b"eeetttaaooiinnsshhrrdlucmfwygpbv      ", dtype=np.uint8)

IsolatedTime = Callable[[int, int], float]


def isolated_time(devices: Sequence[str], scale: float) -> IsolatedTime:
    """E2EL in seconds of (prompt_len, output_len) alone on the second-fastest device (the only one if there is one)."""
    profiles = sorted((load_profile(name) for name in devices), key=lambda p: p.base_s)
    profile = profiles[min(1, len(profiles) - 1)]

    def isolated_s(prompt_len: int, output_len: int) -> float:
        prefill_s = profile.step_s(StepWork(prompt_len, 1))
        return scale * (prefill_s + (output_len - 1) * profile.step_s(StepWork(0, 1)))

    return isolated_s


def capacity_estimate(rows: Sequence[TraceRow], devices: Sequence[str], scale: float) -> float:
    """Requests per second that full batches would reach without prefix caches and overheads; only a first guess."""
    prompt_len = float(np.mean([row.prompt_len for row in rows]))
    output_len = float(np.mean([row.output_len for row in rows]))

    def rate(profile: DeviceProfile) -> float:
        decode_s = profile.step_s(StepWork(0, MAX_NUM_SEQS)) / MAX_NUM_SEQS
        return 1 / (scale * (prompt_len * profile.per_prefill_token_s + output_len * decode_s))

    return sum(rate(load_profile(name)) for name in devices)


def agentic_rows(seed: int, duration_s: float, rate: float) -> list[TraceRow]:
    """Nine task types in sessions, Poisson arrivals; without SLOs and text."""
    return agentic_mix(
        seed,
        duration_s,
        rate,
        slo=lambda *_: SLO(),
        max_prompt_len=MAX_PROMPT_LEN,
        max_output_len=MAX_OUTPUT_LEN,
    )


def cut_off(rows: Sequence[TraceRow], duration_s: float) -> list[TraceRow]:
    """The rows that arrive before `duration_s`."""
    return [row for row in rows if row.arrival_s < duration_s]


def digest(rows: Sequence[TraceRow]) -> str:
    """The same for equal rows."""
    return hashlib.sha256(repr(list(rows)).encode()).hexdigest()


def with_slo(rows: Sequence[TraceRow], level: float, isolated_s: IsolatedTime) -> list[TraceRow]:
    """Each request's E2EL SLO: `level` times its isolated time."""
    return [
        replace(row, slo=SLO(e2el_ms=1e3 * level * isolated_s(row.prompt_len, row.output_len)))
        for row in rows
    ]


def with_text(rows: Sequence[TraceRow], key: str) -> list[TraceRow]:
    """Text that only this `key` has: made up, or recorded conversations whose first message begins with a mark."""
    return [
        _own_messages(row, key) if row.messages else _made_up(row, i, key)
        for i, row in enumerate(rows)
    ]


def _made_up(row: TraceRow, index: int, key: str) -> TraceRow:
    """A stream of letters per session; a longer prompt begins with the shorter one."""
    seed = _digest(f"{key}/{row.session or index}")
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    letters = ALPHABET[rng.integers(len(ALPHABET), size=row.prompt_len)]
    return replace(row, prompt=letters.tobytes().decode("ascii"))


def _own_messages(row: TraceRow, key: str) -> TraceRow:
    (role, text), *rest = row.messages or ()
    return replace(row, messages=((role, f"[{_digest(key).hex()}] {text}"), *rest))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
