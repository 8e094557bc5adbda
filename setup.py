# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Builds the C++ extension and lists the packages; everything else is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension
from setuptools import find_packages, setup

# kernels/ and patches/ lie beside vllm_goodput/ and are mapped into it (tool.setuptools.package-dir).
MAPPED = ("kernels", "patches")
CSRC = "vllm_goodput/csrc"
SOURCES = (
    "bindings",
    "bindings_corrections",
    "bindings_pool",
    "bindings_predictor",
    "bindings_prefix",
    "bindings_router_speed",
    "bindings_view",
    "block_hash",
    "choice",
    "corrections",
    "forest",
    "learned_lengths",
    "lengths",
    "mixture",
    "pool",
    "pool_predict",
    "prefix_index",
    "prefix_keys",
    "prefix_lru",
    "prefix_match",
    "prefix_sets",
    "prefix_table",
    "request_features",
    "sessions",
    "speed_estimator",
    "text_grams",
    "text_stats",
)


def packages() -> list[str]:
    """Return every package of the distribution by its import name."""
    names = ["vllm_goodput", *(f"vllm_goodput.{p}" for p in find_packages("vllm_goodput"))]
    for top in MAPPED:
        names += [f"vllm_goodput.{top}", *(f"vllm_goodput.{top}.{p}" for p in find_packages(top))]
    return names


setup(
    packages=packages(),
    ext_modules=[
        Pybind11Extension(
            "vllm_goodput._C",
            [f"{CSRC}/{name}.cpp" for name in SOURCES],
            depends=sorted(map(str, Path(CSRC).glob("*.h"))),
            cxx_std=17,
            extra_compile_args=["-O3", "-fvisibility=hidden", "-Wall", "-Wextra"],
        )
    ],
)
