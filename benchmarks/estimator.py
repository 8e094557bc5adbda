# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The router's speed estimate: predicted end-to-end latencies against measured ones, plain averages beside it.

Measured answers (CARA: P100, V100, A100 with Qwen2.5 3b to 72b) are replayed through the router's interface with the
true output lengths; load points (AgentPerfBench) tell the shape of d(n); simulated engines and made-up responses with
tenfold changes of speed show what the recordings have not. See the modules named `estimator_*`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.common import Target
from benchmarks.estimator_data import Answer, Instances, read_cara, read_load_points
from benchmarks.estimator_engines import SCENARIOS, answers
from benchmarks.estimator_load import held_out
from benchmarks.estimator_replay import EmaForecaster, Forecaster, RouterForecaster, errors
from benchmarks.estimator_synthetic import USUAL, study
from vllm_goodput import _C
from vllm_goodput.emulation import profile_names
from vllm_goodput.errors import GoodputError

SPEEDS = Path(__file__).parents[2] / "shared" / "data" / "speeds"
WARM_UP = 5
ALPHA = 0.1
ROUTER = "router"
METHODS: dict[str, Callable[[], Forecaster]] = {
    ROUTER: RouterForecaster,
    "EMA of TTFT and TPOT": lambda: EmaForecaster(ALPHA, "whole"),
    "EMA of TTFT per token and TPOT": lambda: EmaForecaster(ALPHA, "token"),
    "EMA of TPOT": lambda: EmaForecaster(ALPHA),
}

Row = Mapping[str, Any]


def measured(instances: Instances) -> list[dict[str, Any]]:
    """Errors on recorded instances, all together and by kind."""
    kinds: dict[str, list[list[Answer]]] = {"all": list(instances.values())}
    for name, found in instances.items():
        kinds.setdefault(name.partition(" #")[0], []).append(found)
    return [
        {"part": "measured", "where": kind, "instances": len(found), **_errors(method, found)}
        for kind, found in kinds.items()
        for method in METHODS
    ]


def simulated(count: int, seed: int) -> list[dict[str, Any]]:
    """Errors on simulated engines of all devices, by scenario."""
    rows = []
    for scenario in SCENARIOS:
        found = [answers(device, scenario, count, seed) for device in profile_names()]
        rows += [
            {
                "part": "simulated",
                "where": scenario.name,
                "instances": len(found),
                **_errors(method, found),
            }
            for method in METHODS
        ]
    return rows


def _errors(method: str, instances: Sequence[Sequence[Answer]]) -> dict[str, Any]:
    signed = np.array(errors(instances, METHODS[method], WARM_UP))
    return {
        "method": method,
        "answers": len(signed),
        "error_median": float(np.median(np.abs(signed))),
        "error_p90": float(np.quantile(np.abs(signed), 0.9)),
        "bias_median": float(np.median(signed)),
    }


def cost(count: int = 100_000) -> dict[str, Any]:
    """Time of one `add`, the call from Python included."""
    native = _C.SpeedEstimator()
    begin = time.perf_counter()
    for number in range(count):
        native.add(0.03 + 1e-6 * (number % 500), 1.0, number % 500, 0.0, 0.0)
        native.add(1.0 + 0.01 * (number % 7), 0.0, 0.0, 50.0, 50.0 * (1 + number % 7))
    return {"part": "cost", "add_us": (time.perf_counter() - begin) / (2 * count) * 1e6}


def targets(rows: Sequence[Row]) -> list[Target]:
    """What is to be reached."""
    best = next(
        r for r in rows if r["part"] == "measured" and r["where"] == "all" and r["method"] == ROUTER
    )
    changes = [r for r in rows if r.get("conditions") == USUAL.name]
    return [
        Target("e2el_error_median", best["error_median"], "<=", 0.03),
        Target("e2el_error_p90", best["error_p90"], "<=", 0.10),
        Target("slowdown_responses", max(float(r["responses_max"]) for r in changes), "<=", 20.0),
    ]


def show(rows: Iterable[Row]) -> None:
    """Print the results."""
    part = ""
    for row in rows:
        if row["part"] != part:
            part = row["part"]
            print(f"\n{part}: {TITLES[part]}")
        print("  " + LINES[part].format(**row))


TITLES = {
    "measured": f"relative error of predicted E2EL, after {WARM_UP} answers of an instance",
    "load points": "relative error of d(n) at a level of load left out",
    "simulated": "relative error of predicted E2EL on simulated engines",
    "change of speed": "responses until predictions are within 10 % and stay so",
    "cost": "one sample, from Python",
}
ERRORS = (
    "{where:40}{method:32}median {error_median:6.2%}  P90 {error_p90:6.2%}  bias {bias_median:+.2%}"
)
LINES = {
    "measured": ERRORS + "  ({answers} answers)",
    "simulated": ERRORS,
    "load points": "{method:40}median {error_median:6.2%}  P90 {error_p90:6.2%}  between others"
    " {between_median:6.2%}  beyond them {beyond_median:6.2%}",
    "change of speed": "{conditions:40}x{times_as_slow:<6}median {responses_median:.0f}  P90 {responses_p90:.0f}"
    "  at most {responses_max} in {runs} runs",
    "cost": "{add_us:.2f} us",
}


def _parser() -> argparse.ArgumentParser:
    parser = common.parser(__doc__ or "")
    parser.add_argument(
        "--cara",
        type=Path,
        default=SPEEDS / "cara_vllm_requests.csv",
        help="answers of measured instances",
    )
    parser.add_argument(
        "--load-points",
        type=Path,
        default=SPEEDS / "agentperfbench_load_points.csv",
        help="means by load",
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is made up")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = _parser().parse_args(argv)
    first = 1000 * args.seed
    seeds = range(first, first + (3 if args.quick else 20))
    try:
        rows = measured(read_cara(args.cara))
        rows += held_out(read_load_points(args.load_points), args.seed)
    except GoodputError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    rows += [*simulated(100 if args.quick else 400, args.seed), *study(seeds), cost()]
    reached = targets(rows)
    show(rows)
    print()
    for target in reached:
        print(f"{target.name} {target.value:.4g} (target {target.op} {target.target:g})")
    settings = {"seed": args.seed, "quick": args.quick, "warm_up": WARM_UP, "alpha": ALPHA}
    common.write(common.report("estimator", settings, rows, reached), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
