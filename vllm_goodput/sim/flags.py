# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Command-line flags of `vllm-goodput simulate`. Those of a trace and of a generated workload are as in `bench`."""

from __future__ import annotations

import argparse
from typing import Any

from vllm_goodput.bench.flags import SHARED, add_shared

# Flags that only one of the two kinds of workload has. They are absent unless given; what they are then:
_GENERATED = ("--rate", "--mix", "--cv", "--prompt-scale", "--output-scale", "--turn-gap-s")
_REFERENCE = ("--ref-ttft-ms", "--ref-tpot-ms", "--ref-prompt-ms")
_TRACE = ("--format", "--limit", "--start-s", "--time-scale", "--request-rate", "--goodput")


def _dest(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


GENERATED: dict[str, Any] = {
    **{_dest(flag): SHARED[flag].get("default") for flag in _GENERATED},
    **dict.fromkeys(map(_dest, _REFERENCE)),
}
TRACE: dict[str, Any] = {_dest(flag): SHARED[flag].get("default") for flag in _TRACE}
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
    add_shared(group, "--max-prompt-len", "--max-output-len")
    group.add_argument(
        "--slo-scale",
        type=float,
        help="trace: multiply every SLO by this (default: 1); generated: E2EL SLO as a multiple of the reference "
        f"device's isolated latency (default: {GENERATED_SLO_SCALE:g})",
    )
    add_shared(group, "--share-session-prefix")
    group.add_argument(
        "--timeout-s",
        type=float,
        help="clients give up after this long, seconds; never when not given",
    )


def _add_trace(group: Any) -> None:
    for flag in _TRACE:
        _add_absent(group, flag, TRACE[_dest(flag)])


def _add_generated(group: Any) -> None:
    for flag in (*_GENERATED, *_REFERENCE):
        _add_absent(group, flag, GENERATED[_dest(flag)])


def _add_absent(group: Any, flag: str, default: Any) -> None:
    """A flag that is absent unless given; its help says what holds then."""
    text = SHARED[flag]["help"]
    if flag == "--ref-ttft-ms":
        text += "; the second-fastest instance's when no --ref-* is given"
    if default not in (None, []):
        text += (
            f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        )
    add_shared(group, flag, default=argparse.SUPPRESS, help=text)


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
    add_shared(group, "--note")
