# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Workloads of pool_sim: traces of recorded agentic conversations on which the length model was not trained.

A workload names task types. At every arrival the longest-waiting open session goes on with its next turn if it has
waited a think time, else another session begins; when all have been replayed they begin again under new names. Texts
are kept, so that the length predictor and the prefix caches see what they would see. Prompts count four bytes a token
(recorded: 3.4 to 4.9 characters), lest the blocks of one text differ between turns; output lengths are as recorded.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.conversations import messages, split
from vllm_goodput.bench import TraceRow
from vllm_goodput.bench.row import CHARS_PER_TOKEN
from vllm_goodput.emulation import DeviceProfile, StepWork
from vllm_goodput.errors import ConfigError
from vllm_goodput.predictor import store
from vllm_goodput.predictor.dataset import Session, from_sessions, read_sessions

WORKLOADS: dict[str, tuple[str, ...]] = {
    "coding": ("code_gen", "bash_agent", "api_codegen"),
    "text_to_sql": ("text_to_sql",),
    "customer_service": ("customer_service", "tool_calling"),
    "mix": (
        "text_to_sql",
        "math",
        "code_gen",
        "bash_agent",
        "api_codegen",
        "multi_hop_qa",
        "customer_service",
        "creative_writing",
        "tool_calling",
    ),
}
THINK_S = 2.0
MAX_PROMPT_LEN, MAX_OUTPUT_LEN = 8000, 2000
CHUNK = 2048  # prompt tokens per step in the isolated latency


@dataclass(frozen=True, eq=False)
class Data:
    """Sessions to replay, and where the model trained on the others lies."""

    test: tuple[Session, ...]
    mean_len: int
    model: Path


def load(pairs: Path, out: Path, seed: int, quick: bool, note: Callable[[str], None]) -> Data:
    """Split the sessions, and train a length model on those that are not replayed (once; it is kept in `out`).

    Raises:
        ConfigError: there is nothing to replay.
        DataError: a file or line is unusable.
    """
    from vllm_goodput.predictor.training import TrainSettings, fit

    sessions, source = read_sessions([pairs])
    train, test = split(sessions, seed)
    if not test:
        raise ConfigError(f"{pairs}: no session is left to replay")
    settings = TrainSettings(seed=seed, rounds=40 if quick else TrainSettings.rounds)
    model = out / f"lengths-{seed}-{settings.rounds}.npz"
    mean = round(float(np.mean([row["output_tokens"] for turns in train for row in turns])))
    if not model.exists():
        note(f"training a length model on {len(train)} sessions; {len(test)} others are replayed")
        out.mkdir(parents=True, exist_ok=True)
        store.save(model, fit(from_sessions(train, source), settings, note))
    return Data(tuple(test), mean, model)


def isolated_s(profile: DeviceProfile, prompt_len: int, output_len: int) -> float:
    """End-to-end latency of a request alone on a device, without a prefix cache, seconds."""
    full, rest = divmod(prompt_len, CHUNK)
    chunks = [CHUNK] * full + [rest] * (rest > 0)
    prefill_s = sum(profile.step_s(StepWork(chunk, 1)) for chunk in chunks)
    return prefill_s + (output_len - 1) * profile.step_s(StepWork(0, 1))


def make_trace(
    sessions: Sequence[Session],
    workload: str,
    count: int,
    rate: float,
    seed: int,
    burstiness: float = 1.0,
) -> list[TraceRow]:
    """A trace of `count` requests without SLOs.

    Args:
        sessions: to replay.
        workload: a name in WORKLOADS.
        count: requests.
        rate: mean arrivals per second.
        seed: of order and arrivals.
        burstiness: shape of the gamma distribution of gaps, as in `vllm bench serve`: 1 is Poisson, below is burstier.
    """
    tasks = WORKLOADS[workload]
    chosen = [turns for turns in sessions if turns[0]["task"] in tasks]
    rng = np.random.default_rng((seed, list(WORKLOADS).index(workload)))
    gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), size=count)
    times = np.cumsum(gaps) - gaps[0]
    turns = _sessions(chosen, tasks, rng)
    rows: list[TraceRow] = []
    waiting: deque[tuple[float, str, Session, int]] = deque()
    while len(rows) < count:
        now_s = float(times[len(rows)])
        if waiting and now_s - waiting[0][0] >= THINK_S:
            _, name, session, turn = waiting.popleft()
        else:
            name, session = next(turns)
            turn = 0
        row = session[turn]
        if turn + 1 < len(session):
            waiting.append((now_s, name, session, turn + 1))
        if _fits(row):
            rows.append(_row(now_s, name, session, turn))
    return rows


def _sessions(
    sessions: Sequence[Session], tasks: Sequence[str], rng: np.random.Generator
) -> Iterator[tuple[str, Session]]:
    """Sessions without end, the task types in turn, each with a name of its own."""
    endless = {
        task: _shuffled([turns for turns in sessions if turns[0]["task"] == task], rng)
        for task in tasks
        if any(turns[0]["task"] == task for turns in sessions)
    }
    for number in itertools.count():
        task = rng.choice(list(endless))
        yield f"{task}-{number}", next(endless[str(task)])


def _shuffled(sessions: list[Session], rng: np.random.Generator) -> Iterator[Session]:
    while True:
        for index in rng.permutation(len(sessions)).tolist():
            yield sessions[index]


def _fits(row: dict[str, object]) -> bool:
    prompt_len, output_len = row["prompt_tokens"], row["output_tokens"]
    assert isinstance(prompt_len, int)
    assert isinstance(output_len, int)
    return 0 < prompt_len <= MAX_PROMPT_LEN and 0 < output_len <= MAX_OUTPUT_LEN


def _row(arrival_s: float, name: str, session: Session, turn: int) -> TraceRow:
    row = session[turn]
    sent = messages(session, turn)
    size = sum(len(text.encode("utf-8", "replace")) for _, text in sent)
    return TraceRow(
        arrival_s=arrival_s,
        task=row["task"],
        session=name,
        messages=sent,
        prompt_len=max(1, size // CHARS_PER_TOKEN),
        output_len=row["output_tokens"],
    )
