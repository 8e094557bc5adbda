# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Replaying traces with SLOs against any OpenAI endpoint, and judging the outcome by goodput."""

from __future__ import annotations

from vllm_goodput.bench.compare import Comparison, compare
from vllm_goodput.bench.measure import summarise
from vllm_goodput.bench.options import ReplayOptions
from vllm_goodput.bench.record import Record
from vllm_goodput.bench.replay import replay
from vllm_goodput.bench.report import print_result, write_html
from vllm_goodput.bench.result import build_result, read_json, write_json
from vllm_goodput.bench.selection import Selection
from vllm_goodput.bench.trace import (
    TraceRow,
    load_trace,
    trace_duration_s,
    trace_sha256,
    write_trace,
)
from vllm_goodput.bench.workloads import ReferenceDevice, agentic_mix

__all__ = [
    "Comparison",
    "Record",
    "ReferenceDevice",
    "ReplayOptions",
    "Selection",
    "TraceRow",
    "agentic_mix",
    "build_result",
    "compare",
    "load_trace",
    "print_result",
    "read_json",
    "replay",
    "summarise",
    "trace_duration_s",
    "trace_sha256",
    "write_html",
    "write_json",
    "write_trace",
]
