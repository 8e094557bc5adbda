# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Measured vLLM instances: answers one by one (CARA), and means by load (AgentPerfBench).

CARA's rows (asdwb/cara_latency_prediction) were sampled as bursts: about 20 consecutive completions of one instance,
in order of completion. `t_unix_s` is the arrival. Which of several like instances a burst comes from is not recorded,
nor what else was running: requests that had come before a burst's or ended after it. Bursts of one model and GPU that
do not overlap are taken for one instance, as few of them as that allows. Tokens are counted so that the last costs no
step.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_goodput.errors import DataError

# Rows further apart than this, or whose completions go back by more than that, belong to different bursts.
GAP_S, BACK_S = 60.0, 1.0


@dataclass(frozen=True)
class Answer:
    """One streamed answer. Times in seconds; lengths in tokens."""

    arrival_s: float
    prompt_len: int
    output_len: int
    ttft_s: float
    e2el_s: float

    @property
    def end_s(self) -> float:
        """When the last token came."""
        return self.arrival_s + self.e2el_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.e2el_s - self.ttft_s) / max(1, self.output_len - 1)


Instances = dict[str, list[Answer]]


@dataclass(frozen=True)
class LoadPoint:
    """Means at one level of load. `nominal` is the client's concurrency.

    Args:
        setup: GPU, model and workload.
        nominal: requests that the client keeps open.
        in_flight: requests open on average, by Little's law.
        decoding: of these, answers past their first token.
        tpot_s: time per output token.
    """

    setup: str
    nominal: float
    in_flight: float
    decoding: float
    tpot_s: float


def read_cara(path: Path) -> Instances:
    """Answers by instance, each in order of completion; times from the first arrival.

    Raises:
        DataError: the file is missing or not of this form.
    """
    rows = [(f"{row['model']} on {row['gpu']}", _answer(row)) for row in _rows(path)]
    first_s = min(answer.arrival_s for _, answer in rows)
    lanes: dict[str, list[list[Answer]]] = {}
    bursts = list(_bursts(rows))
    for kind, burst in sorted(bursts, key=lambda found: _begin_s(found[1])):
        for lane in lanes.setdefault(kind, []):
            if lane[-1].end_s <= _begin_s(burst):
                lane += burst
                break
        else:
            lanes[kind].append(burst)
    return {
        f"{kind} #{number}": [_shifted(answer, first_s) for answer in lane]
        for kind, found in lanes.items()
        for number, lane in enumerate(found, 1)
    }


def read_load_points(path: Path) -> dict[str, list[LoadPoint]]:
    """Load points by setup, in order of load.

    Raises:
        DataError: the file is missing or not of this form.
    """
    setups: dict[str, list[LoadPoint]] = {}
    for row in _rows(path):
        tpot_s = float(row["mean_tpot_ms"]) / 1e3
        point = LoadPoint(
            setup=f"{row['model']} on {row['gpu']}, {row['profile']}",
            nominal=float(row["concurrency"]),
            in_flight=float(row["request_throughput"]) * float(row["mean_e2el_ms"]) / 1e3,
            decoding=float(row["output_token_throughput"]) * tpot_s,
            tpot_s=tpot_s,
        )
        setups.setdefault(point.setup, []).append(point)
    return {name: sorted(found, key=lambda p: p.nominal) for name, found in setups.items()}


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; name the file by its flag"
        ) from None
    if not rows:
        raise DataError(f"{path}: no rows")
    return rows


def _answer(row: dict[str, str]) -> Answer:
    return Answer(
        float(row["t_unix_s"]),
        int(row["prompt_tokens"]),
        int(row["output_tokens"]),
        float(row["ttft_s"]),
        float(row["e2e_s"]),
    )


def _bursts(rows: Iterable[tuple[str, Answer]]) -> Iterator[tuple[str, list[Answer]]]:
    kind, burst = "", list[Answer]()
    for name, answer in rows:
        if burst and (name != kind or not -BACK_S < answer.end_s - burst[-1].end_s < GAP_S):
            yield kind, burst
            burst = []
        kind = name
        burst.append(answer)
    if burst:
        yield kind, burst


def _begin_s(burst: Sequence[Answer]) -> float:
    return min(answer.arrival_s for answer in burst)


def _shifted(answer: Answer, by_s: float) -> Answer:
    return Answer(
        answer.arrival_s - by_s,
        answer.prompt_len,
        answer.output_len,
        answer.ttft_s,
        answer.e2el_s,
    )
