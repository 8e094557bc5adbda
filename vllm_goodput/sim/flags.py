# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Command-line flags of `vllm-goodput simulate`. Those of a trace and of a generated workload are as in `bench`."""

from __future__ import annotations

import argparse
from typing import Any

# Flags that only one of the two kinds of workload has, with what they are without being given.
GENERATED: dict[str, Any] = {
    "rate": 1.0,
    "mix": None,
    "cv": 1.0,
    "prompt_scale": 1.0,
    "output_scale": 1.0,
    "turn_gap_s": 5.0,
    "ref_ttft_ms": None,
    "ref_tpot_ms": None,
    "ref_prompt_ms": None,
}
TRACE: dict[str, Any] = {
    "format": "auto",
    "limit": None,
    "start_s": 0.0,
    "time_scale": None,
    "request_rate": None,
    "goodput": [],
}
GENERATED_DURATION_S = 60.0
GENERATED_SLO_SCALE = 4.0


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "pool",
        metavar="POOL",
        help="deployment.yaml whose instances say `emulate: NAME[:SCALE]`, or a file of such instances without ports",
    )
    parser.add_argument(
        "trace",
        nargs="?",
        metavar="TRACE",
        help="trace file: Azure CSV, Mooncake or goodput JSONL; a workload is generated when not given",
    )
    _add_study(parser.add_argument_group("what to compare"))
    _add_workload(parser.add_argument_group("workload"))
    _add_trace(parser.add_argument_group("workload from a trace"))
    _add_generated(parser.add_argument_group("generated workload"))
    _add_engines(parser.add_argument_group("instances"))
    _add_output(parser.add_argument_group("output"))


def _add_study(group: Any) -> None:
    from vllm_goodput.router.policies import POLICIES

    group.add_argument(
        "--policy",
        action="append",
        choices=sorted(POLICIES),
        metavar="NAME",
        help="routing policy, repeatable; the pool file's when not given; one of "
        + ", ".join(sorted(POLICIES)),
    )
    group.add_argument(
        "--baseline", metavar="NAME", help="policy that ratios refer to; the first when not given"
    )
    group.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[0],
        metavar="N",
        help="seeds of the generated workload, of the jitter and of random policies; results are over all of them",
    )
    group.add_argument(
        "--bound",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also prove how many requests any policy could serve in time at most",
    )
    group.add_argument(
        "--use-max-tokens",
        action="store_true",
        help="let the router know each request's max_tokens, which here is its true output length",
    )
    group.add_argument(
        "--migration",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="move running requests where the policy says so",
    )


def _add_workload(group: Any) -> None:
    group.add_argument(
        "--duration-s",
        type=float,
        help=f"length of the generated workload (default: {GENERATED_DURATION_S:g}) or of the trace's window, seconds",
    )
    group.add_argument("--max-prompt-len", type=int, help="cut prompts to this many tokens")
    group.add_argument("--max-output-len", type=int, help="cap on output length, tokens")
    group.add_argument(
        "--slo-scale",
        type=float,
        help="trace: multiply every SLO by this (default: 1); generated: E2EL SLO as a multiple of the reference "
        f"device's isolated latency (default: {GENERATED_SLO_SCALE:g})",
    )
    group.add_argument(
        "--share-session-prefix",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="made-up prompts of one session begin alike, as an agent's turns do",
    )
    group.add_argument(
        "--timeout-s",
        type=float,
        help="clients give up after this long, seconds; never when not given",
    )


def _add_trace(group: Any) -> None:
    def add(flag: str, **settings: Any) -> None:
        group.add_argument(flag, default=argparse.SUPPRESS, **settings)

    add("--format", choices=["auto", "azure", "mooncake", "goodput"], help="format (default: auto)")
    add("--limit", type=int, help="replay at most this many requests")
    add("--start-s", type=float, help="begin of the window, seconds of trace time (default: 0)")
    add("--time-scale", type=float, help="multiply arrival times; 0.5 replays twice as fast")
    add("--request-rate", type=float, help="rescale arrivals to this mean rate, req/s")
    add(
        "--goodput",
        nargs="+",
        metavar="METRIC:MS",
        help="SLO of rows without one, milliseconds, e.g. ttft:2000 tpot:100 e2el:20000",
    )


def _add_generated(group: Any) -> None:
    def add(flag: str, text: str, default: bool = True, **settings: Any) -> None:
        value = GENERATED[flag.removeprefix("--").replace("-", "_")]
        text += f" (default: {value:g})" if default else ""
        group.add_argument(flag, default=argparse.SUPPRESS, help=text, **settings)

    add("--rate", "mean request rate, requests per second", type=float)
    add(
        "--mix",
        "weight of each task type; all alike when not given",
        False,
        nargs="+",
        metavar="TASK=WEIGHT",
    )
    add("--cv", "variation of gaps between arrivals; 1 is Poisson", type=float)
    add("--prompt-scale", "multiply prompt lengths by this", type=float)
    add("--output-scale", "multiply output lengths by this", type=float)
    add("--turn-gap-s", "least time between a session's turns, s", type=float)
    reference = "the second-fastest instance's when no --ref-* is given"
    add("--ref-ttft-ms", f"the reference device's TTFT, ms; {reference}", False, type=float)
    add("--ref-tpot-ms", "its time per output token, ms", False, type=float)
    add("--ref-prompt-ms", "its TTFT per prompt token, ms", False, type=float)


def _add_engines(group: Any) -> None:
    group.add_argument(
        "--engine",
        choices=["gpu", "cpu"],
        help="vLLM's defaults for what the pool file leaves open: gpu has KV blocks of 16 tokens and asynchronous "
        "scheduling, cpu blocks of 128 and none; cpu for a deployment.yaml, else gpu",
    )
    group.add_argument(
        "--kv-tokens", type=int, help="capacity of KV caches that the pool file leaves open, tokens"
    )
    group.add_argument(
        "--request-overhead-ms",
        type=float,
        help="HTTP and tokenisation before the engine, ms (default: 10)",
    )
    group.add_argument(
        "--token-overhead-ms",
        type=float,
        help="from the end of a step to the client, ms (default: 3)",
    )
    group.add_argument(
        "--jitter-ms",
        type=float,
        default=1.0,
        help="mean of a random time that each request takes longer to reach the engine, ms",
    )
    group.add_argument(
        "--probe-word-tokens",
        type=float,
        default=1.3,
        help="tokens per word of the gateway's speed probes; about 6 with a byte-level tokenizer",
    )
    group.add_argument(
        "--slow",
        action="append",
        default=[],
        metavar="NAME=FACTOR@S",
        help="an instance's steps take FACTOR times as long from S seconds on; repeatable",
    )
    group.add_argument(
        "--down",
        action="append",
        default=[],
        metavar="NAME@S[-S]",
        help="an instance dies at S seconds, and is back at the second S if given; repeatable",
    )


def _add_output(group: Any) -> None:
    group.add_argument("--json", metavar="PATH|-", help="write all results as JSON")
    group.add_argument(
        "--html",
        metavar="PATH",
        help="write a self-contained HTML page: the report of one policy, or the comparison of several",
    )
    group.add_argument(
        "--requests",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="keep one row per request in the JSON",
    )
    group.add_argument(
        "--note", action="append", default=[], help="shown prominently in reports; repeatable"
    )
