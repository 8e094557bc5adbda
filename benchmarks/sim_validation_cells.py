# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The cells of `benchmarks.sim_validation`: pools, loads and policies, and the trace of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_goodput.bench import TraceRow, agentic_mix
from vllm_goodput.config import DeploymentConfig, validate
from vllm_goodput.emulation import load_profile
from vllm_goodput.sim import SimInstance
from vllm_goodput.sim.plan import second_fastest
from vllm_goodput.sim.pool_file import ENGINES

MODEL = ".cache/tiny-llama"
VOCAB_SIZE = 259
WORD_TOKENS = 6.0  # of the gateway's probes with the model's byte-level tokenizer
MAX_PROMPT_LEN, MAX_OUTPUT_LEN = 2000, 200
MAX_NUM_SEQS = 16
CLIENT_TIMEOUT_S = 120.0
SLO_SCALE = 1.5  # tight, so that goodput depends on latencies
FIRST_PORT = 18301


@dataclass(frozen=True)
class Cell:
    """One trace under one policy.

    Args:
        pool: key of POOLS.
        policy: of the router.
        rate: requests per second.
        fitted: whether the constants are fitted on it; else it is predicted.
    """

    pool: str
    policy: str
    rate: float
    fitted: bool = False

    @property
    def name(self) -> str:
        """Unique."""
        return f"{self.pool} {self.policy} {self.rate:g}/s"


@dataclass(frozen=True)
class PoolSpec:
    """Devices of a pool and the factor on their times."""

    devices: tuple[str, ...]
    scale: float


POOLS: Mapping[str, PoolSpec] = {
    "single": PoolSpec(("l40s",), 2.5),
    "pool": PoolSpec(("h100", "a100", "l40s", "t4"), 4.0),
}
CELLS = (
    Cell("single", "round_robin", 1.8, fitted=True),
    Cell("single", "round_robin", 1.0),
    Cell("single", "round_robin", 2.4),
    Cell("pool", "weighted_least_request", 4.5, fitted=True),
    Cell("pool", "weighted_least_request", 6.5),
    Cell("pool", "least_request", 4.5),
    Cell("pool", "goodput", 6.5),
)


def deployment(pool: str) -> DeploymentConfig:
    """The real engines of a pool."""
    spec = POOLS[pool]
    data: dict[str, Any] = {
        "model": MODEL,
        "args": {
            "served-model-name": "tiny",
            "max-num-seqs": MAX_NUM_SEQS,
            "disable-uvicorn-access-log": True,
        },
        "instances": [
            {"name": device, "port": FIRST_PORT + i, "emulate": f"{device}:{spec.scale}"}
            for i, device in enumerate(spec.devices)
        ],
        "gateway": {"port": FIRST_PORT - 1, "router": {"use_max_tokens": False}},
        "log_dir": f"out/logs-{pool}",
    }
    return validate(data, DeploymentConfig, f"pool {pool}")


def instances(pool: str) -> list[SimInstance]:
    """The same simulated, with the defaults of vLLM's CPU build."""
    spec = POOLS[pool]
    settings = vars(ENGINES["cpu"]) | {"max_num_seqs": MAX_NUM_SEQS}
    return [
        SimInstance(name=device, profile=load_profile(device), scale=spec.scale, **settings)
        for device in spec.devices
    ]


def trace(cell: Cell, duration_s: float, seed: int) -> list[TraceRow]:
    """Agentic requests with deadlines relative to the second-fastest device."""
    return agentic_mix(
        seed,
        duration_s,
        cell.rate,
        max_prompt_len=MAX_PROMPT_LEN,
        max_output_len=MAX_OUTPUT_LEN,
        slo_scale=SLO_SCALE,
        reference=second_fastest(instances(cell.pool)),
    )
