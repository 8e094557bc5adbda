# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Three vLLM engines that emulate unequal devices, one agentic trace, several routing policies: the comparison.

Real engines, real HTTP, emulated device speeds (examples/unequal-pool.yaml). The trace is replayed open-loop under
each policy in turn over the same engines; prompts differ in content between the policies, so that none meets a
prefix cache warmed by another. Deadlines: a multiple of each request's isolated latency on the second-fastest device.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import common
from benchmarks.tiny_models import tiny_llama
from vllm_goodput.bench import (
    ReplayOptions,
    TraceRow,
    agentic_mix,
    build_result,
    compare,
    replay,
    trace_duration_s,
    write_html,
    write_json,
)
from vllm_goodput.bench.endpoint import server_notes
from vllm_goodput.bench.progress import ReplayProgress
from vllm_goodput.bench.result import without_requests
from vllm_goodput.config import DeploymentConfig, load_yaml
from vllm_goodput.deploy import Deployment
from vllm_goodput.deploy.report import make_reporter
from vllm_goodput.emulation import StepWork, load_profile
from vllm_goodput.errors import GoodputError
from vllm_goodput.router.policies import POLICIES
from vllm_goodput.slo import SLO

ROOT = Path(__file__).parents[1]
DEPLOYMENT = ROOT / "examples" / "unequal-pool.yaml"
POLICY_ORDER = ("round_robin", "weighted_least_request", "goodput")
VOCAB_SIZE = 259
Results = dict[str, dict[str, Any]]
# Clients give up after this long; no deadline of the trace is later.
CLIENT_TIMEOUT_S = 60.0
# Someone waits for the interactive tasks; the others run in the background.
SLO_SCALE = {"text_to_sql": 2.5, "bash_agent": 2.5, "tool_calling": 2.5, "customer_service": 2.5}
BACKGROUND_SLO_SCALE = 4.0


def make_trace(config: DeploymentConfig, args: argparse.Namespace) -> list[TraceRow]:
    """The agentic trace with its deadlines."""
    slo = slo_rule(config)
    return agentic_mix(
        args.seed,
        args.duration_s,
        args.rate,
        slo=slo,
        max_prompt_len=2000,
        max_output_len=200,
    )


def slo_rule(config: DeploymentConfig) -> Any:
    """e2el = scale x isolated latency on the second-fastest device of the pool."""
    emulated = [i.emulate for i in config.instances if i.emulate is not None]
    profiles = sorted(
        ((load_profile(e.profile), e.scale) for e in emulated),
        key=lambda p: p[0].base_s * p[1],
    )
    profile, scale = profiles[1]

    def isolated_s(prompt_len: int, output_len: int) -> float:
        prefill_s = profile.step_s(StepWork(prompt_len, 1))
        return scale * (prefill_s + (output_len - 1) * profile.step_s(StepWork(0, 1)))

    def rule(task: str, prompt_len: int, output_len: int) -> SLO:
        factor = SLO_SCALE.get(task, BACKGROUND_SLO_SCALE)
        return SLO(e2el_ms=1e3 * factor * isolated_s(prompt_len, output_len))

    return rule


async def run(args: argparse.Namespace, console: Console) -> Results:
    """One result per policy."""
    os.chdir(ROOT)  # the deployment's paths are relative to it
    tiny_llama(".cache/tiny-llama")
    config = load_yaml(DEPLOYMENT, DeploymentConfig)
    rows = make_trace(config, args)
    results: Results = {}
    async with Deployment(config, gateway=False, reporter=make_reporter()) as deployment:
        for index, policy in enumerate(args.policies):
            console.print(
                f"\n[bold]{policy}[/] ({index + 1} of {len(args.policies)}): starting the gateway, "
                "which measures each instance with a few small requests"
            )
            async with deployment.run_gateway(policy=policy) as url:
                results[policy] = await measure(rows, url, index, console)
    return results


async def measure(
    rows: Sequence[TraceRow],
    url: str,
    seed: int,
    console: Console,
    endpoint: Any = "completions",
    source: str = "agentic_mix",
) -> dict[str, Any]:
    """Replay the trace against a gateway."""
    options = ReplayOptions(
        url=url,
        endpoint=endpoint,
        vocab_size=VOCAB_SIZE,
        seed=seed,
        timeout_s=CLIENT_TIMEOUT_S,
        extra_body={"temperature": 0},
    )
    async with ReplayProgress(len(rows), console) as progress:
        records = await replay(rows, options, observer=progress)
    return build_result(
        records,
        trace_duration_s(rows),
        settings={"url": url, "seed": seed},
        trace={"name": source, "rows": len(rows)},
        notes=[
            f"clients give up after {CLIENT_TIMEOUT_S:g} s; such requests count as failed",
            *await server_notes(options),
        ],
        exact_lengths=endpoint == "completions",
    )


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = common.parser(__doc__ or "")
    parser.add_argument(
        "--duration-s",
        type=float,
        help="length of the trace, seconds (default: 30 with --quick, else 65)",
    )
    parser.add_argument("--rate", type=float, default=11.0, help="requests per second")
    parser.add_argument("--seed", type=int, default=0, help="of the trace")
    parser.add_argument(
        "--policies", nargs="+", choices=sorted(POLICIES), default=list(POLICY_ORDER), help="to run"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo", help="report directory")
    args = parser.parse_args(argv)
    if args.duration_s is None:
        args.duration_s = 30.0 if args.quick else 65.0
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison, print it and write the reports."""
    args = parse_args(argv)
    settings = {"duration_s": args.duration_s, "rate": args.rate, "seed": args.seed}
    return carry_out(args, run, "demo", "policy", settings)


def carry_out(
    args: argparse.Namespace,
    run: Callable[[argparse.Namespace, Console], Coroutine[Any, Any, Results]],
    benchmark: str,
    by: str,
    settings: dict[str, Any],
) -> int:
    """Run a comparison, print it and write the reports; returns the exit status.

    Args:
        args: the command line, with `out` and `json`.
        run: gives a result per name.
        benchmark: its name in the JSON.
        by: what the names are, in the JSON.
        settings: for the JSON.
    """
    console = Console(stderr=True, highlight=False)
    try:
        results = asyncio.run(run(args, console))
    except GoodputError as error:
        console.print(f"[red]error:[/] {error}")
        return error.exit_code
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been stopped")
        return 130
    args.out.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        write_html(result, args.out / f"{name}.html")
        write_json(result, args.out / f"{name}.json")
    comparison = compare(results)
    comparison.write_html(args.out / "comparison.html")
    comparison.print(Console(highlight=False, stderr=args.json == "-"))
    summaries = [{by: name, **without_requests(result)} for name, result in results.items()]
    common.write(common.report(benchmark, settings, summaries), args.json)
    console.print(f"\nreports: {args.out / 'comparison.html'} and one per result beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
