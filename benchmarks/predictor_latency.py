# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Time that one prediction takes, from a decoded OpenAI chat body to a quantile of its length, and time to learn from a
request that finished. It is the CPU time of one thread, so that what else runs on the machine counts for little."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import Target
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.predictor.store import default_model
from vllm_goodput.predictor.view import view_of
from vllm_goodput.router.types import RequestInfo

Body = dict[str, Any]
Request = tuple[int, Body, str | None]

BATCH = 64
LONG_CHARS = 100_000
ASCII = (
    "select the name of every singer whose concert was in 2014 and return {'id': 7, \"total\": 3.5} "
    "from table_12 where x >= 10; def solve(items): # then explain each step, please.\n"
)
OTHER = "größte Zahl für naïve Ärzte 東京 の 人口 は 何人 ですか Сколько стоит билет 🙂 ¿cuántos"


def ordinary(rng: random.Random) -> Body:
    """A chat of one to nine messages of up to a few thousand characters."""
    messages = [{"role": "system", "content": _text(rng, rng.randint(50, 2000), ASCII)}]
    for _ in range(rng.randrange(5)):
        messages.append({"role": "user", "content": _text(rng, rng.randint(20, 1500), ASCII)})
        answer = _text(rng, rng.randint(20, 1500), ASCII)
        messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": _text(rng, rng.randint(20, 4000), ASCII)})
    body: Body = {"messages": messages, "max_tokens": rng.choice([256, 1024, 4096])}
    if rng.random() < 0.3:
        body["tools"] = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(8)]
    return body


def long_ascii(rng: random.Random) -> Body:
    """A long prompt."""
    return {"messages": [{"role": "user", "content": _text(rng, LONG_CHARS, ASCII)}]}


def long_other(rng: random.Random) -> Body:
    """A long prompt in several scripts."""
    return {"messages": [{"role": "user", "content": _text(rng, LONG_CHARS, OTHER)}]}


KINDS: dict[str, Callable[[random.Random], Body]] = {
    "ordinary": ordinary,
    "100k characters": long_ascii,
    "100k characters, not ASCII": long_other,
}


def _text(rng: random.Random, chars: int, words: str) -> str:
    return " ".join(rng.choices(words.split(" "), k=chars // 2 + 1))[:chars]


def measure(model: MoEModel, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Microseconds of CPU time per request by kind of body, one at a time and in batches."""
    found = []
    for kind, make in KINDS.items():
        rng = random.Random(seed)
        models = [*model.models, "unknown"]
        requests: list[Request] = [
            (i, {**make(rng), "model": rng.choice(models)}, rng.choice([None, *model.gate.tasks]))
            for i in range(BATCH)
        ]
        predictor = MoEPredictor(model)
        # In service most sessions and kinds of requests have had some finish before.
        for request in requests:
            predictor.observe(_info(*request), 20 + 5 * request[0])
        with one_core():
            timed = {
                "view alone": _views(requests, rounds),
                "single": _singles(predictor, requests, rounds),
                f"batch of {BATCH}": _batches(predictor, requests, rounds),
                "observe": _observations(predictor, requests, rounds),
            }
        for name, micros in timed.items():
            p50, p90 = np.quantile(micros, [0.5, 0.9])
            row = {"bodies": kind, "call": name, "calls": len(micros)}
            found.append(
                {**row, "least_us": min(micros), "p50_us": float(p50), "p90_us": float(p90)}
            )
    return found


def _info(number: int, body: Body, task: str | None) -> RequestInfo:
    """As the gateway makes it; half of the requests are second turns of the others' sessions."""
    limit = body.get("max_tokens")
    return RequestInfo(
        request_id=str(number),
        prompt_len=500,
        arrival_s=0.0,
        task=task,
        session=str(number % (BATCH // 2)),
        max_tokens=limit,
        model=body["model"],
        view=view_of(body, True, 500, limit),
    )


def _views(requests: Sequence[Request], rounds: int) -> list[float]:
    """The part of the time that is spent before the predictor is called."""
    micros = []
    for count in range(rounds + 1):
        begin = time.thread_time_ns()
        for request in requests:
            _info(*request)
        if count:
            micros.append((time.thread_time_ns() - begin) / 1e3 / len(requests))
    return micros


def _singles(predictor: MoEPredictor, requests: Sequence[Request], rounds: int) -> list[float]:
    micros = []
    for count in range(rounds + 1):
        for request in requests:
            begin = time.thread_time_ns()
            predictor.predict(_info(*request)).quantile(0.9)
            if count:  # the first round warms up
                micros.append((time.thread_time_ns() - begin) / 1e3)
    return micros


def _batches(predictor: MoEPredictor, requests: Sequence[Request], rounds: int) -> list[float]:
    micros = []
    for count in range(rounds + 1):
        begin = time.thread_time_ns()
        for predicted in predictor.predict_batch([_info(*request) for request in requests]):
            predicted.quantile(0.9)
        if count:
            micros.append((time.thread_time_ns() - begin) / 1e3 / len(requests))
    return micros


def _observations(predictor: MoEPredictor, requests: Sequence[Request], rounds: int) -> list[float]:
    """Mean per round, of requests whose predictions are at hand."""
    infos = [_info(*request) for request in requests]
    predictions = predictor.predict_batch(infos)
    lengths = [20 + 5 * number for number in range(len(infos))]
    micros = []
    for count in range(rounds + 1):
        begin = time.thread_time_ns()
        for info, length, predicted in zip(infos, lengths, predictions, strict=True):
            predictor.observe(info, length, predicted)
        if count:
            micros.append((time.thread_time_ns() - begin) / 1e3 / len(requests))
    return micros


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and the threads that it starts, on one core where the system allows it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the package's own model and print it."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--seed", type=int, default=0, help="of the bodies")
    args = parser.parse_args(argv)
    rows = measure(default_model(), 20 if args.quick else 100, args.seed)
    p50 = {row["call"]: row["p50_us"] for row in rows if row["bodies"] == "ordinary"}
    targets = [
        Target("single_p50_us", p50["single"], "<=", 200.0),
        Target("batch64_us", p50[f"batch of {BATCH}"], "<=", 20.0),
        Target("observe_us", p50["observe"], "<=", 5.0),
    ]
    for row in rows:
        print(
            f"{row['bodies']:28}{row['call']:14}least {row['least_us']:6.1f}   p50 {row['p50_us']:6.1f}"
            f"   p90 {row['p90_us']:6.1f} us"
        )
    common.write(common.report("predictor_latency", {"seed": args.seed}, rows, targets), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
