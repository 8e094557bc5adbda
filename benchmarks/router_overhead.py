# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Time from a request's arrival to the router's decision, at 10,000 requests per second over 512 instances.

One process does everything that a gateway's router has to, in real time: what has arrived is predicted by the learned
model in batches, its prompt is hashed and looked up in the prefix index, the policy decides, and all that comes back is
taken in: first tokens, token counts (in batches, one per instance and interval) and ends, from which speeds, lengths
and calibration are learned. Only the instances are not there: when their events come is computed from what the router
predicted, with noise. Requests are made before the clock starts; HTTP is not measured here.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import resource
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import common
from benchmarks.common import Target
from vllm_goodput.config import RouterConfig
from vllm_goodput.gateway.proxy import REASK_S
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.store import default_model
from vllm_goodput.predictor.view import view_of
from vllm_goodput.router import Dispatch, Hold, RequestInfo, Router
from vllm_goodput.router.estimator import Sample, SpeedEstimator
from vllm_goodput.router.prefix import text_blocks
from vllm_goodput.slo import SLO

# Seconds per decode step at batch 1, of four kinds of devices in equal numbers, and per prompt token.
DECODE_S = (0.007, 0.011, 0.026, 0.036)
PREFILL_S = (3.2e-5, 5.1e-5, 8.9e-5, 6.2e-4)
MAX_NUM_SEQS = 256
BATCH = 64
SESSIONS = 20_000
BYTES_PER_TOKEN = 4
PROMPT_LEN = (200, 2000)  # tokens, of the part that a session shares and of all
TASKS = ("text_to_sql", "code_gen", "math", "bash_agent", "customer_service")
WORDS = (
    "select",
    "name",
    "from",
    "where",
    "join",
    "def",
    "return",
    "total",
    "solve",
    "then",
    "item",
)
# Real requests last as long as their instances take; these are about as long at lighter load.
OUTPUT_LOG_MEAN, OUTPUT_LOG_STD = 3.7, 0.8


@dataclass(slots=True)
class Arrival:
    """A request before it arrives; its prompt begins at byte `start` of a long text."""

    at_s: float
    info: RequestInfo
    start: int
    output_len: int


def make_arrivals(rate: float, duration_s: float, seed: int, console: Console) -> list[Arrival]:
    """Poisson arrivals of sessions that come back with longer prompts."""
    rng = np.random.default_rng(seed)
    count = int(rate * duration_s)
    times = np.cumsum(rng.exponential(1.0 / rate, count))
    session = rng.integers(SESSIONS, size=count)
    lengths = np.maximum(1, np.exp(rng.normal(OUTPUT_LOG_MEAN, OUTPUT_LOG_STD, count))).astype(int)
    prompt_lens = rng.integers(*PROMPT_LEN, size=count)
    views = [_view(rng, i) for i in range(2000)]
    arrivals = []
    for i in track(range(count), "making requests", console=console, transient=True):
        at_s, length = float(times[i]), int(prompt_lens[i])
        slo = SLO(e2el_ms=float(rng.choice((2_000, 5_000, 15_000))) + 60.0 * float(lengths[i]))
        info = RequestInfo(
            f"r{i}",
            length,
            at_s,
            slo,
            task=TASKS[session[i] % len(TASKS)],
            session=f"s{session[i]}",
            view=views[i % len(views)],
        )
        arrivals.append(Arrival(at_s, info, int(session[i]), int(lengths[i])))
    return arrivals


def _view(rng: np.random.Generator, i: int) -> Any:
    text = " ".join(rng.choice(WORDS, int(rng.integers(30, 400))))
    body = {
        "messages": [{"role": "system", "content": text[:400]}, {"role": "user", "content": text}]
    }
    return view_of(body, True, len(text) // 4, None)


def make_router(instances: int) -> Router:
    """A router with the default model over instances whose speed has been measured."""
    router = Router(
        RouterConfig(use_max_tokens=False), MoEPredictor(default_model(), use_max_tokens=False)
    )
    for i in range(instances):
        state = router.add_instance(f"i{i}", MAX_NUM_SEQS, kv_tokens=400_000)
        state.speed = _speed(i)
    return router


def _speed(i: int) -> SpeedEstimator:
    speed = SpeedEstimator()
    decode_s, prefill_s = DECODE_S[i % 4], PREFILL_S[i % 4]
    for tokens in (100, 1000):
        for sequences in (1, 8):
            speed.add(Sample(decode_s + prefill_s * tokens, 1, tokens, 0, 0))
            step_s = decode_s * (1.0 + 0.008 * sequences)
            speed.add(Sample(64 * step_s, 0, 0, 64, 64 * sequences))
    return speed


class Loop:
    """Plays the arrivals in real time against the router.

    Args:
        router: to measure.
        arrivals: to play.
        progress_s: token counts come so often.
        seed: of the noise.
    """

    def __init__(
        self, router: Router, arrivals: Sequence[Arrival], progress_s: float, seed: int
    ) -> None:
        self._router = router
        self._arrivals = arrivals
        self._progress_s = progress_s
        rng = np.random.default_rng(seed)
        self._text = rng.bytes(SESSIONS + BYTES_PER_TOKEN * PROMPT_LEN[1])
        self._noise = rng.lognormal(0.0, 0.1, 4096).tolist()
        self._events: list[tuple[float, int, int]] = []  # when, first (0) or end (1), arrival
        self._open: list[dict[int, tuple[float, float, str]]] = [{} for _ in router.instances]
        self._slot = {name: state.slot for name, state in router.instances.items()}
        self._where = [-1] * len(arrivals)
        self._held: deque[tuple[float, int, Any]] = deque()
        self._last_ask_s = 0.0
        self.latency_s: list[float] = []
        self.counts = {"dispatched": 0, "held": 0, "rejected": 0, "finished": 0, "progress": 0}

    def run(self) -> None:
        """Until every request has been decided."""
        start_s = time.perf_counter()
        count, upcoming, told = len(self._arrivals), 0, 0
        slots = len(self._open)
        while upcoming < count or self._held:
            now_s = time.perf_counter() - start_s
            batch: list[int] = []
            while (
                upcoming < count and len(batch) < BATCH and self._arrivals[upcoming].at_s <= now_s
            ):
                batch.append(upcoming)
                upcoming += 1
            if batch:
                self._place(batch, start_s)
                now_s = time.perf_counter() - start_s
            while self._held and self._held[0][0] <= now_s:
                _, index, lengths = self._held.popleft()
                self._decide(index, lengths, start_s)
            self._feed_back(now_s, limit=2 * max(1, len(batch)) if upcoming < count else 10_000)
            # Token counts of one instance after the other, so that each is heard every progress_s.
            due = int(now_s / self._progress_s * slots)
            told = max(told, due - slots)
            for slot in range(told, min(due, told + 64)):
                self._progress(slot % slots, now_s)
            told = min(due, told + 64)
            if not batch and upcoming < count:
                wait_s = min(self._arrivals[upcoming].at_s - now_s, 0.0002)
                if wait_s > 0.00005:
                    time.sleep(wait_s / 2)

    def _place(self, batch: list[int], start_s: float) -> None:
        router = self._router
        for index in batch:
            arrival = self._arrivals[index]
            end = arrival.start + BYTES_PER_TOKEN * arrival.info.prompt_len
            blocks = text_blocks(self._text[arrival.start : end], 1.0 / BYTES_PER_TOKEN, "m")
            object.__setattr__(arrival.info, "blocks", blocks)
        lengths = router.predictor.predict_batch([self._arrivals[i].info for i in batch])
        for index, one in zip(batch, lengths, strict=True):
            self._decide(index, one, start_s, first=True)

    def _decide(self, index: int, lengths: Any, start_s: float, first: bool = False) -> None:
        arrival, router = self._arrivals[index], self._router
        decision = router.route(arrival.info, time.perf_counter() - start_s, lengths)
        now_s = time.perf_counter() - start_s
        if first:
            self.latency_s.append(now_s - arrival.at_s)
        if isinstance(decision, Dispatch):
            router.on_dispatched(arrival.info, decision, now_s)
            self._dispatched(index, decision, now_s)
        elif isinstance(decision, Hold):
            self.counts["held"] += 1
            # As in gateway/proxy.py: held requests ask 2,000 times a second in all.
            self._last_ask_s = max(decision.retry_at_s, self._last_ask_s + REASK_S)
            self._held.append((self._last_ask_s, index, lengths))
        else:
            self.counts["rejected"] += 1

    def _dispatched(self, index: int, decision: Dispatch, now_s: float) -> None:
        self.counts["dispatched"] += 1
        prediction = decision.prediction
        noise = self._noise[index % len(self._noise)]
        first_s = now_s + prediction.ttft_s * noise
        step_s = prediction.tpot_s * noise
        arrival = self._arrivals[index]
        slot = self._slot[decision.instance]
        self._where[index] = slot
        self._open[slot][index] = (first_s, step_s, arrival.info.request_id)
        heapq.heappush(self._events, (first_s, 0, index))
        heapq.heappush(self._events, (first_s + step_s * (arrival.output_len - 1) + 1e-6, 1, index))

    def _feed_back(self, now_s: float, limit: int) -> None:
        events, router = self._events, self._router
        while events and events[0][0] <= now_s and limit > 0:
            at_s, kind, index = heapq.heappop(events)
            arrival = self._arrivals[index]
            limit -= 1
            if kind == 0:
                router.on_first_token(arrival.info.request_id, at_s)
            else:
                del self._open[self._where[index]][index]
                router.on_finished(arrival.info.request_id, arrival.output_len, at_s)
                self.counts["finished"] += 1

    def _progress(self, slot: int, now_s: float) -> None:
        ids, tokens = [], []
        for first_s, step_s, request_id in self._open[slot].values():
            if first_s < now_s:
                ids.append(request_id)
                tokens.append(1 + int((now_s - first_s) / step_s))
        if ids:
            self._router.on_progress_many(ids, tokens, now_s)
            self.counts["progress"] += len(ids)


def measure(instances: int, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """One row of the result."""
    rate = args.rate
    arrivals = make_arrivals(rate, args.duration_s, args.seed, console)
    router = make_router(instances)
    loop = Loop(router, arrivals, args.progress_s, args.seed)
    gc.collect()
    gc.freeze()  # the requests made beforehand are the harness's, not the router's
    before = resource.getrusage(resource.RUSAGE_SELF)
    started_s = time.perf_counter()
    loop.run()
    wall_s = time.perf_counter() - started_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    gc.unfreeze()
    latency = np.array(loop.latency_s) * 1e3
    settled = latency[len(latency) // 10 :]  # the first tenth warms up
    return {
        "instances": instances,
        "rate": rate,
        "requests": len(latency),
        "mean_ms": float(settled.mean()),
        "p50_ms": float(np.percentile(settled, 50)),
        "p99_ms": float(np.percentile(settled, 99)),
        "max_ms": float(settled.max()),
        "cpu_us_per_request": 1e6
        * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        / max(1, len(latency)),
        "wall_s": wall_s,
        "rss_growth_mb": (after.ru_maxrss - before.ru_maxrss) / 1024,
        **loop.counts,
    }


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__ or "")
    parser.add_argument(
        "--instances", type=int, nargs="+", default=[64, 512, 2048], help="pool sizes"
    )
    parser.add_argument("--rate", type=float, default=10_000.0, help="requests per second")
    parser.add_argument(
        "--duration-s", type=float, help="seconds of arrivals (default: 3 with --quick, else 30)"
    )
    parser.add_argument(
        "--progress-s", type=float, default=0.25, help="interval of token counts, seconds"
    )
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and noise")
    args = parser.parse_args(argv)
    if args.duration_s is None:
        args.duration_s = 3.0 if args.quick else 30.0
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write the JSON."""
    args = parse_args(argv)
    console = Console(stderr=args.json == "-")
    results = [measure(instances, args, console) for instances in args.instances]
    table = Table(title=f"arrival to decision at {args.rate:g} requests/s")
    for name in ("instances", "mean_ms", "p50_ms", "p99_ms", "max_ms", "cpu_us_per_request"):
        table.add_column(name, justify="right")
    for row in results:
        table.add_row(
            str(row["instances"]),
            *(f"{row[n]:.3f}" for n in ("mean_ms", "p50_ms", "p99_ms", "max_ms")),
            f"{row['cpu_us_per_request']:.0f}",
        )
    console.print(table)
    main_row = next((r for r in results if r["instances"] == 512), None)
    targets = [
        Target(name, main_row[name] if main_row else None, "<=", limit)
        for name, limit in (("mean_ms", 1.0), ("p99_ms", 3.0))
    ]
    settings = {name: str(value) for name, value in vars(args).items()}
    common.write(common.report("router_overhead", settings, results, targets), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
