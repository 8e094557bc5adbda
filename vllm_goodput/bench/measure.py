# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""From per-request records to the summary: pure functions.

Names are those of `vllm bench serve` where it has the figure (vllm/benchmarks/serve.py). Goodput is requests meeting
all their SLOs over the duration of the trace, attainment the same count over all offered requests, rejected ones
included. A request without SLO counts as met when it completes. Values that do not exist are None, never NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vllm_goodput.bench.record import Record
from vllm_goodput.slo import METRICS

PERCENTILES = (50, 90, 95, 99)
UNLABELLED = "(none)"


def summarise(
    records: Sequence[Record], trace_duration_s: float, *, duration_s: float | None = None
) -> dict[str, Any]:
    """The summary of a run.

    Args:
        records: one per offered request.
        trace_duration_s: seconds from the first arrival to the last; where it is 0 (one request, or all at once),
            goodput refers to the duration of the run.
        duration_s: seconds from the start of the run to its last answer; None takes it from the records.
    """
    if duration_s is None:
        duration_s = max((r.finished_s for r in records if r.finished_s is not None), default=0.0)
    span_s = trace_duration_s if trace_duration_s > 0 else duration_s
    completed = [r for r in records if r.completed]
    input_tokens = sum(r.prompt_len for r in completed)
    output_tokens = sum(r.output_tokens for r in completed)
    summary = {
        "duration": duration_s,
        "trace_duration_s": trace_duration_s,
        **_counts(records, span_s),
        "rejected": dict(sorted(Counter(_reasons(records)).items())),
        "missed_by": _missed_by(completed),
        "offered_rate": _ratio(len(records), span_s),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _ratio(len(completed), duration_s),
        "output_throughput": _ratio(output_tokens, duration_s),
        "total_token_throughput": _ratio(input_tokens + output_tokens, duration_s),
        "short_answers": sum(r.output_tokens < r.output_len for r in completed),
        "migrations": sum(r.migrations for r in records),
        **latencies(completed),
        **_client_lateness(records),
        "prediction": prediction_error(completed),
        "per_task": _groups(records, span_s, lambda r: r.task or UNLABELLED),
        "per_instance": _groups(records, span_s, lambda r: r.instance),
    }
    return {name: finite(value) for name, value in summary.items()}


def latencies(completed: Iterable[Record], metrics: Sequence[str] = ()) -> dict[str, float | None]:
    """Mean, median, std and percentiles of TTFT, TPOT, ITL and E2EL, in milliseconds."""
    rows = list(completed)
    values: dict[str, list[float]] = {
        "ttft": [r.ttft_s for r in rows if r.ttft_s is not None],
        "tpot": [r.tpot_s for r in rows if r.tpot_s is not None],
        "itl": [gap for r in rows for gap in r.itl_s],
        "e2el": [r.e2el_s for r in rows if r.e2el_s is not None],
    }
    result: dict[str, float | None] = {}
    for metric in metrics or values:
        result |= _statistics(values[metric], metric)
    return result


def prediction_error(completed: Iterable[Record]) -> dict[str, float | None]:
    """How far the router's predicted E2EL was off, where it gave one; empty when it never did.

    Errors are predicted minus actual, in milliseconds; `mape` is the mean of |error| / actual and `under_fraction`
    the share of requests that took longer than predicted.
    """
    pairs = [
        (r.predicted_e2el_ms, r.e2el_s * 1e3)
        for r in completed
        if r.predicted_e2el_ms is not None and r.e2el_s
    ]
    if not pairs:
        return {}
    predicted, actual = np.array(pairs).T
    error = predicted - actual
    return {
        "count": len(pairs),
        "mean_error_ms": float(error.mean()),
        "mean_abs_error_ms": float(np.abs(error).mean()),
        "p90_abs_error_ms": float(np.percentile(np.abs(error), 90)),
        "mape": float((np.abs(error) / actual).mean()),
        "under_fraction": float((error < 0).mean()),
    }


def finite(value: Any) -> Any:
    """`value` with every float that JSON cannot express replaced by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _counts(records: Sequence[Record], span_s: float) -> dict[str, Any]:
    outcomes = Counter(r.outcome for r in records)
    return {
        "offered": len(records),
        "completed": outcomes["met"] + outcomes["missed"],
        "failed": outcomes["failed"],
        "met": outcomes["met"],
        "slo_attainment": _ratio(outcomes["met"], len(records)),
        "request_goodput": _ratio(outcomes["met"], span_s),
    }


def _groups(
    records: Iterable[Record], span_s: float, key: Callable[[Record], str | None]
) -> dict[str, Any]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        name = key(record)
        if name is not None:
            groups.setdefault(name, []).append(record)
    return {name: _group(groups[name], span_s) for name in sorted(groups)}


def _group(records: Sequence[Record], span_s: float) -> dict[str, Any]:
    completed = [r for r in records if r.completed]
    return {
        **_counts(records, span_s),
        "rejected": sum(1 for _ in _reasons(records)),
        "total_output_tokens": sum(r.output_tokens for r in completed),
        **latencies(completed, ["e2el"]),
    }


def _reasons(records: Iterable[Record]) -> Iterable[str]:
    return (r.reject_reason or "" for r in records if r.outcome == "rejected")


def _missed_by(completed: Iterable[Record]) -> dict[str, int]:
    counts = Counter(metric for record in completed for metric in record.missed)
    return {metric: counts[metric] for metric in METRICS}


def _client_lateness(records: Iterable[Record]) -> dict[str, float | None]:
    late_ms = np.array([r.late_s * 1e3 for r in records])
    if not late_ms.size:
        return {"p99_client_late_ms": None, "max_client_late_ms": None}
    return {
        "p99_client_late_ms": float(np.percentile(late_ms, 99)),
        "max_client_late_ms": float(late_ms.max()),
    }


def _statistics(values_s: Sequence[float], metric: str) -> dict[str, float | None]:
    names = [f"{n}_{metric}_ms" for n in ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))]
    if not values_s:
        return dict.fromkeys(names)
    ms = np.asarray(values_s, dtype=np.float64) * 1e3
    numbers = [ms.mean(), np.median(ms), ms.std(), *np.percentile(ms, PERCENTILES)]
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}


def _ratio(count: float, span: float) -> float | None:
    return count / span if span > 0 else None
