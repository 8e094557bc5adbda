# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Command-line flags of `vllm-goodput bench`."""

from __future__ import annotations

import argparse
from typing import Any

# Flags that other commands have as well: of a trace's window and SLOs, of made-up prompts, of reports ...
SHARED: dict[str, dict[str, Any]] = {
    "--format": {
        "choices": ["auto", "azure", "mooncake", "goodput"],
        "default": "auto",
        "help": "format of the trace",
    },
    "--limit": {"type": int, "help": "replay at most this many requests"},
    "--start-s": {
        "type": float,
        "default": 0.0,
        "help": "begin of the window, seconds of trace time",
    },
    "--time-scale": {"type": float, "help": "multiply arrival times; 0.5 replays twice as fast"},
    "--request-rate": {
        "type": float,
        "help": "rescale arrivals to this mean rate, req/s",
    },
    "--goodput": {
        "nargs": "+",
        "default": [],
        "metavar": "METRIC:MS",
        "help": "SLO of rows without one, milliseconds, e.g. ttft:2000 tpot:100 e2el:20000",
    },
    "--max-prompt-len": {"type": int, "help": "cut prompts to this many tokens"},
    "--max-output-len": {"type": int, "help": "cap on output length, tokens"},
    "--share-session-prefix": {
        "action": argparse.BooleanOptionalAction,
        "default": True,
        "help": "made-up prompts of one session begin alike, as an agent's turns do",
    },
    "--note": {
        "action": "append",
        "default": [],
        "help": "shown prominently in reports; repeatable",
    },
    # ... and of a generated workload.
    "--rate": {"type": float, "default": 1.0, "help": "mean request rate, requests per second"},
    "--mix": {
        "nargs": "+",
        "metavar": "TASK=WEIGHT",
        "help": "weight of each task type among requests; all alike when not given",
    },
    "--cv": {
        "type": float,
        "default": 1.0,
        "help": "variation of gaps between arrivals; 1 is Poisson",
    },
    "--prompt-scale": {"type": float, "default": 1.0, "help": "multiply prompt lengths by this"},
    "--output-scale": {"type": float, "default": 1.0, "help": "multiply output lengths by this"},
    "--turn-gap-s": {
        "type": float,
        "default": 5.0,
        "help": "least time between a session's turns, s",
    },
    "--ref-ttft-ms": {"type": float, "default": 50.0, "help": "the reference device's TTFT, ms"},
    "--ref-tpot-ms": {"type": float, "default": 20.0, "help": "its time per output token, ms"},
    "--ref-prompt-ms": {"type": float, "default": 0.0, "help": "its TTFT per prompt token, ms"},
}


def add_shared(group: Any, *flags: str, **changed: Any) -> None:
    """Declare shared flags, with these settings changed."""
    for flag in flags:
        group.add_argument(flag, **{**SHARED[flag], **changed})


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bench run`."""
    parser.add_argument(
        "trace", metavar="TRACE", help="trace file: Azure CSV, Mooncake or goodput JSONL"
    )
    _add_endpoint_flags(parser.add_argument_group("endpoint"))
    _add_request_flags(parser.add_argument_group("requests"))
    _add_trace_flags(parser.add_argument_group("trace"))
    _add_output_flags(parser.add_argument_group("output"))


def _add_endpoint_flags(group: Any) -> None:
    group.add_argument("--url", default="http://127.0.0.1:8000", help="base URL of the server")
    group.add_argument("--model", help="model name; asked from the server when not given")
    group.add_argument(
        "--endpoint",
        choices=["completions", "chat"],
        default="completions",
        help="completions sends token ids (exact prompt lengths), chat sends words",
    )
    group.add_argument(
        "--api-key", help="bearer token; the environment's OPENAI_API_KEY when not given"
    )
    group.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="extra HTTP header; may be given several times",
    )
    group.add_argument("--timeout-s", type=float, default=600.0, help="limit per request, seconds")


def _add_request_flags(group: Any) -> None:
    group.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="stream answers; without it TTFT is E2EL and TPOT is not measured",
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate exactly the trace's output length (vLLM's ignore_eos, min_tokens)",
    )
    group.add_argument(
        "--vocab-size", type=int, default=1000, help="made-up prompts use token ids below this"
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of made-up prompts; an engine that has seen a seed has its prompts in the prefix cache",
    )
    add_shared(group, "--share-session-prefix")
    group.add_argument(
        "--extra-body", default="{}", metavar="JSON", help="more fields of every request's body"
    )


def _add_trace_flags(group: Any) -> None:
    add_shared(group, "--format", "--limit", "--start-s")
    group.add_argument(
        "--duration-s", type=float, help="length of the window, seconds of trace time"
    )
    pace = group.add_mutually_exclusive_group()
    add_shared(pace, "--time-scale", "--request-rate")
    add_shared(group, "--max-prompt-len", "--max-output-len", "--goodput")
    group.add_argument("--slo-scale", type=float, default=1.0, help="multiply every SLO by this")


def _add_output_flags(group: Any) -> None:
    group.add_argument("--json", metavar="PATH|-", help="write the result as JSON")
    group.add_argument("--html", metavar="PATH", help="write a self-contained HTML report")
    group.add_argument(
        "--requests",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep one row per request in the JSON",
    )
    add_shared(group, "--note")


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bench compare`."""
    parser.add_argument("results", nargs="+", metavar="JSON", help="results of `bench run --json`")
    parser.add_argument("--baseline", help="name (file name without .json) that ratios refer to")
    parser.add_argument("--json", metavar="PATH|-", help="write the comparison as JSON")
    parser.add_argument("--html", metavar="PATH", help="write a self-contained HTML page")


def add_generate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `bench generate`."""
    add = parser.add_argument
    add("-o", "--output", required=True, metavar="PATH", help="trace file to write, JSONL")
    add("--duration-s", type=float, default=60.0, help="length of the trace, seconds")
    add_shared(parser, "--rate")
    add("--seed", type=int, default=0, help="seed of everything random")
    add_shared(parser, "--mix", "--cv", "--prompt-scale", "--output-scale")
    add("--max-prompt-len", type=int, help="cap on prompt length, tokens")
    add_shared(parser, "--max-output-len", "--turn-gap-s")
    add(
        "--slo-scale",
        type=float,
        help="E2EL SLO as a multiple of the reference device's isolated latency; none if not given",
    )
    add_shared(parser, "--ref-ttft-ms", "--ref-tpot-ms", "--ref-prompt-ms")
