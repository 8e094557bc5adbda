# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The command line of `benchmarks.pool_live`, and the settings of engines and gateway that follow from it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks import pool_live_trace as trace
from benchmarks.pool_live_peers import parse_peer
from vllm_goodput.config import DeploymentConfig, validate
from vllm_goodput.errors import ConfigError

ROOT = Path(__file__).parents[1]
MODEL = ".cache/tiny-llama"
# What smg asks the engines for is 10 s old by default, too old for pools this small: with 2 s it does clearly better.
_FRESH = "load-monitor-interval=2"
PEERS = (
    *("vllm-router:round_robin", "vllm-router:power_of_two", "vllm-router:cache_aware"),
    *("smg:cache_aware", f"smg:power_of_two:{_FRESH}", f"smg:least_load:{_FRESH}"),
)
QUICK_PEERS = ("vllm-router:cache_aware", f"smg:power_of_two:{_FRESH}")
LEVELS = (2.5, 4.0, 7.0)
_FULL = {"levels": LEVELS, "repeats": 2, "duration_s": 90.0, "warmup_s": 8.0, "peers": PEERS}
_QUICK = {"levels": (4.0,), "repeats": 1, "duration_s": 20.0, "warmup_s": 5.0, "peers": QUICK_PEERS}


def parse_args(argv: Sequence[str] | None, doc: str) -> argparse.Namespace:
    """The command line; `peers` are parsed, paths absolute.

    Raises:
        ConfigError: a value is out of range.
    """
    parser = common.parser(doc)
    add = parser.add_argument
    add(
        "--peers",
        nargs="*",
        metavar="PROGRAM:POLICY[:FLAG=VALUE...]",
        help=f"routers to compare with (default: {' '.join(PEERS)})",
    )
    add("--levels", nargs="+", type=float, help="SLO levels (default: 2.5 4 7)")
    add("--repeats", type=int, help="of every level, in opposite orders (default: 2)")
    add("--duration-s", type=float, help="of a cell's trace after the warm-up (default: 90)")
    add("--warmup-s", type=float, help="of a cell, not counted (default: 8)")
    add("--rate", type=float, help="requests per second (default: --load x the measured capacity)")
    add("--load", type=float, default=1.0, help="share of the pool's capacity")
    add("--scale", type=float, default=3.0, help="factor on all times of the emulated devices")
    add("--seed", type=int, default=0, help="of the trace")
    add("--pairs", type=Path, help="recorded conversations (JSONL), not the mix; needs --rate")
    add("--recorded-model", default="gpt-4", help="whose conversations of --pairs to replay")
    add("--port", type=int, default=8201, help="of the first engine")
    add(
        "--resume",
        action="store_true",
        help="keep the finished, valid cells in --out, run the others",
    )
    add("--out", type=Path, default=ROOT / "out" / "pool-live", help="results and reports")
    return _checked(parser.parse_args(argv))


def _checked(args: argparse.Namespace) -> argparse.Namespace:
    for name, value in (_QUICK if args.quick else _FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    for name in ("rate", "load", "scale", "duration_s", "repeats"):
        value = getattr(args, name)
        if value is not None and not 0 < value < 1e6:
            raise ConfigError(f"{name}: must be a number > 0, got {value!r}")
    if not 0 <= args.warmup_s < 1e6:
        raise ConfigError(f"warmup_s: must be a number >= 0, got {args.warmup_s!r}")
    if not all(0 < level < 1e6 for level in args.levels):
        raise ConfigError(f"levels: must be numbers > 0, got {args.levels!r}")
    if args.pairs is not None and args.rate is None:
        raise ConfigError("pairs: needs --rate, since capacity is measured with the made-up mix")
    args.peers = [parse_peer(text) for text in dict.fromkeys(args.peers)]
    args.levels = sorted(set(args.levels))
    args.out = args.out.absolute()
    args.pairs = args.pairs and args.pairs.absolute()
    return args


def settings_of(args: argparse.Namespace, rate: float) -> dict[str, Any]:
    """What changes a cell's result, beside level and router."""
    names = ("duration_s", "warmup_s", "scale", "seed")
    return {name: getattr(args, name) for name in names} | {
        "rate": rate,
        "devices": list(trace.DEVICES),
        "max_num_seqs": trace.MAX_NUM_SEQS,
        "trace": "agentic_mix" if args.pairs is None else f"{args.pairs}, {args.recorded_model}",
    }


def gateway_settings(model_file: Path | None = None) -> dict[str, Any]:
    """Of our router: no migration. True lengths, which the trace carries as max_tokens, stay unknown to it.

    Args:
        model_file: of the length predictor; None for the package's own.
    """
    predictor = {"kind": "learned"} | ({"model": str(model_file)} if model_file else {})
    return {
        "policy": "goodput",
        "use_max_tokens": False,
        "predictor": predictor,
        "migration": {"max_moves": 0},
    }


def deployment_config(args: argparse.Namespace) -> DeploymentConfig:
    """The engines; every device at the same time scale."""
    data = {
        "model": MODEL,
        "args": {
            "served-model-name": "tiny" if args.pairs is None else args.recorded_model,
            "max-num-seqs": trace.MAX_NUM_SEQS,
            "disable-uvicorn-access-log": True,
        },
        "instances": [
            {"name": name, "port": args.port + i, "emulate": f"{name}:{args.scale:g}"}
            for i, name in enumerate(trace.DEVICES)
        ],
        "gateway": {"port": 0},
        "log_dir": str(args.out / "logs"),
    }
    return validate(data, DeploymentConfig, "pool_live")
