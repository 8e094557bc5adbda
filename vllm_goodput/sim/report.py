# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Reports of simulations, with what replays have: tables, an HTML page, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from vllm_goodput.bench import compare, print_result, write_html
from vllm_goodput.bench.html import number, percent
from vllm_goodput.bench.report import terminal_table
from vllm_goodput.bench.result import machine, without_requests
from vllm_goodput.sim.spec import SimInstance
from vllm_goodput.sim.study import Result

Results = Mapping[str, Result]


def pool_rows(instances: Sequence[SimInstance]) -> list[dict[str, Any]]:
    """The simulated instances, for JSON."""
    return [
        {
            "name": spec.name,
            "device": spec.profile.device,
            "model": spec.profile.model,
            "scale": spec.scale,
            "max_num_seqs": spec.max_num_seqs,
            "max_num_batched_tokens": spec.max_num_batched_tokens,
            "kv_tokens": spec.kv_tokens,
            "block_size": spec.block_size,
            "prefix_caching": spec.prefix_caching,
            "async_scheduling": spec.async_scheduling,
        }
        for spec in instances
    ]


def note(instances: Sequence[SimInstance]) -> str:
    """What every report must say."""
    devices = ", ".join(
        f"{spec.name}: {spec.profile.device}" + (f" x {spec.scale:g}" if spec.scale != 1 else "")
        for spec in instances
    )
    return f"simulated, not measured; step times from device profiles ({devices})"


def as_dict(
    results: Results,
    *,
    baseline: str,
    settings: Mapping[str, Any],
    instances: Sequence[SimInstance],
    interrupted: bool,
    requests: bool,
) -> dict[str, Any]:
    """Everything, for JSON.

    Args:
        results: by policy.
        baseline: what ratios refer to.
        settings: how it was made.
        instances: the pool.
        interrupted: whether workloads are missing.
        requests: keep a row per request.
    """
    return {
        "benchmark": "vllm-goodput simulate",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": dict(settings),
        "pool": pool_rows(instances),
        "interrupted": interrupted,
        "comparison": compare(results, baseline).as_dict(),
        "results": {
            policy: result if requests else without_requests(result)
            for policy, result in results.items()
        },
    }


def print_results(results: Results, baseline: str, console: Console) -> None:
    """Print the result of one policy, or the comparison of several."""
    if len(results) == 1:
        print_result(results[baseline], console)
    else:
        compare(results, baseline).print(console)
    if any(len(result["seeds"]) > 1 for result in results.values()):
        console.print(_seed_table(results))
        console.print(Text("goodput in req/s; error: standard error of the mean over seeds"))


def write_page(results: Results, baseline: str, path: str) -> None:
    """Write the HTML report of one policy, or the comparison of several.

    Raises:
        ConfigError: the file cannot be written.
    """
    if len(results) == 1:
        write_html(results[baseline], path)
    else:
        compare(results, baseline).write_html(path)


def _seed_table(results: Results) -> Any:
    seeds = [str(seed["seed"]) for seed in next(iter(results.values()))["seeds"]]
    columns = [*(f"seed {seed}" for seed in seeds), "error", "attained"]
    rows = [
        [
            policy,
            *(number(seed["request_goodput"], 3) for seed in result["seeds"]),
            number(result["goodput_standard_error"], 3),
            percent(result["slo_attainment"]),
        ]
        for policy, result in results.items()
    ]
    return terminal_table("goodput by seed", columns, rows)
