# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What better output-length predictions buy: goodput of one pool and policy with several predictors in turn.

Three vLLM engines that emulate unequal devices, the policy `goodput`, and the same trace for every predictor: a
constant, the running histogram, the learned mixture of experts, and an oracle (the true length, by max_tokens). With
--pairs the trace is made of recorded conversations with their real texts and lengths, from sessions that the learned
model was not trained on; without, it is the demo's, whose made-up prompts tell nothing beyond their task.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import common, demo
from benchmarks.conversations import messages, split
from benchmarks.tiny_models import tiny_llama
from vllm_goodput.bench import TraceRow
from vllm_goodput.config import DeploymentConfig, load_yaml
from vllm_goodput.deploy import Deployment
from vllm_goodput.deploy.report import make_reporter
from vllm_goodput.errors import ConfigError
from vllm_goodput.predictor import store
from vllm_goodput.predictor.dataset import Session, from_sessions, read_sessions

# The name of each predictor in the tables, and its kind in the router's settings.
KINDS = {
    "constant": "constant",
    "histogram": "histogram",
    "learned": "learned",
    "oracle": "max_tokens",
}
TURN_GAP_S = 5.0
MAX_PROMPT_LEN, MAX_OUTPUT_LEN = 3000, 600


@dataclass(frozen=True)
class Setup:
    """What is replayed.

    Args:
        rows: the trace.
        endpoint: which endpoint it goes to.
        served: the model's name at the instances.
        model_file: of the learned predictor; None for the package's own.
        constant: the constant predictor's length, tokens.
        source: says where the trace comes from.
    """

    rows: list[TraceRow]
    endpoint: str
    served: str
    model_file: Path | None
    constant: int
    source: str


def from_demo(config: DeploymentConfig, args: argparse.Namespace) -> Setup:
    """The demo's trace."""
    rows = demo.make_trace(config, args)
    mean = round(float(np.mean([row.output_len for row in rows])))
    return Setup(rows, "completions", "tiny", None, mean, "agentic_mix")


def from_pairs(config: DeploymentConfig, args: argparse.Namespace, console: Console) -> Setup:
    """Recorded conversations of one model, by chat; the predictor is trained on the other sessions."""
    from vllm_goodput.predictor.training import TrainSettings, fit

    sessions, source = read_sessions([args.pairs])
    for turns in sessions:
        _recount(turns)
    train, held_out = split(sessions, args.seed)
    test = [turns for turns in held_out if turns[0]["model"] == args.recorded_model]
    if not test:
        raise ConfigError(
            f"{args.pairs} has no held-out session of the model {args.recorded_model!r}"
        )
    console.print(f"training on {len(train)} sessions; {len(test)} others make the trace")
    data = from_sessions(train, source)
    model_file = args.out / "lengths.npz"
    settings = TrainSettings(seed=args.seed, rounds=60 if args.quick else TrainSettings.rounds)
    store.save(model_file, fit(data, settings, lambda stage: console.print(f"  {stage}")))
    rows = list(_trace(test, demo.slo_rule(config), args))
    mean = round(float(data.output_len[data.model == args.recorded_model].mean()))
    return Setup(rows, "chat", args.recorded_model, model_file, mean, "recorded conversations")


def _recount(turns: Session) -> None:
    """Prompt lengths as the tiny model's tokenizer counts them: one token per byte."""
    length = 0
    for row in turns:
        text = len(row["prompt"].encode("utf-8", "replace"))
        length = text if row.get("prompt_kind", "full") == "full" else length + text
        row["prompt_tokens"] = length
        length += len(str(row.get("output") or "").encode("utf-8", "replace"))


def _trace(sessions: list[Session], rule: Any, args: argparse.Namespace) -> Iterator[TraceRow]:
    """Poisson arrivals; each continues the longest-waiting open session if one has waited enough, or begins another."""
    rng = np.random.default_rng(args.seed)
    fresh = deque(sessions[i] for i in rng.permutation(len(sessions)))
    waiting: deque[tuple[float, Session, int]] = deque()
    now_s = 0.0
    while now_s < args.duration_s and (fresh or waiting):
        if waiting and (now_s - waiting[0][0] >= TURN_GAP_S or not fresh):
            _, turns, turn = waiting.popleft()
        else:
            turns, turn = fresh.popleft(), 0
        row = turns[turn]
        if row["prompt_tokens"] <= MAX_PROMPT_LEN and 0 < row["output_tokens"] <= MAX_OUTPUT_LEN:
            yield TraceRow(
                arrival_s=round(now_s, 6),
                task=row["task"],
                session=f"{row['task']}-{row['session']}",
                messages=messages(turns, turn),
                prompt_len=row["prompt_tokens"],
                output_len=row["output_tokens"],
                slo=rule(row["task"], row["prompt_tokens"], row["output_tokens"]),
            )
            now_s += float(rng.exponential(1 / args.rate))
            if turn + 1 < len(turns):
                waiting.append((now_s, turns, turn + 1))


async def run(args: argparse.Namespace, console: Console) -> demo.Results:
    """One result per predictor."""
    os.chdir(demo.ROOT)  # the deployment's paths are relative to it
    tiny_llama(".cache/tiny-llama")
    config = load_yaml(demo.DEPLOYMENT, DeploymentConfig)
    setup = from_pairs(config, args, console) if args.pairs else from_demo(config, args)
    args_of_all = {**config.args, "served-model-name": setup.served}
    config = config.model_copy(update={"args": args_of_all})
    results: demo.Results = {}
    async with Deployment(config, gateway=False, reporter=make_reporter()) as deployment:
        for index, name in enumerate(args.lengths):
            console.print(f"\n[bold]{name}[/] lengths ({index + 1} of {len(args.lengths)})")
            predictor: dict[str, Any] = {"kind": KINDS[name]}
            if name == "learned" and setup.model_file is not None:
                predictor["model"] = str(setup.model_file)
            async with deployment.run_gateway(
                policy="goodput", predictor=predictor, initial_output_len=setup.constant
            ) as url:
                results[name] = await demo.measure(
                    setup.rows, url, index, console, endpoint=setup.endpoint, source=setup.source
                )
    return results


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__ or "")
    parser.add_argument(
        "--pairs", type=Path, help="folder of recorded (prompt, output) pairs, JSONL"
    )
    parser.add_argument("--recorded-model", default="gpt-4", help="whose conversations to replay")
    parser.add_argument(
        "--duration-s",
        type=float,
        help="length of the trace, seconds (default: 8 with --quick, else 65)",
    )
    parser.add_argument("--rate", type=float, default=14.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=0, help="of trace and training")
    parser.add_argument(
        "--lengths", nargs="+", choices=list(KINDS), default=list(KINDS), help="to run"
    )
    parser.add_argument(
        "--out", type=Path, default=demo.ROOT / "out" / "length-goodput", help="report directory"
    )
    args = parser.parse_args(argv)
    args.out = args.out.absolute()
    args.pairs = args.pairs and args.pairs.absolute()
    if args.duration_s is None:
        args.duration_s = 8.0 if args.quick else 65.0
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison, print it and write the reports."""
    args = parse_args(argv)
    settings = {name: str(value) for name, value in vars(args).items()}
    return demo.carry_out(args, run, "length_goodput", "lengths", settings)


if __name__ == "__main__":
    sys.exit(main())
