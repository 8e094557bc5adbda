# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput doctor`: one line per check, what to do where one fails; exit status 1 if any fails."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points, version
from importlib.util import find_spec

from rich.console import Console

from vllm_goodput import __version__, compat, envs
from vllm_goodput.errors import GoodputError

Result = tuple[str, str]  # (ok | warn | fail, text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(args: argparse.Namespace) -> int:
    """Run every check and print it."""
    console = Console(highlight=False, soft_wrap=True)
    marks = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
    worst = 0
    for check in CHECKS:
        for state, text in check():
            console.print(f"{marks[state]} {text}", markup=True)
            worst = max(worst, int(state == "fail"))
    return worst


def check_platform() -> Iterator[Result]:
    """Python and package versions."""
    yield "ok", f"vllm-goodput {__version__} on Python {platform.python_version()}"


def check_native() -> Iterator[Result]:
    """The C++ extension loads and computes."""
    try:
        native = import_module("vllm_goodput._C")
        hashes = native.token_block_hashes([1, 2, 3, 4], 2)
    except ImportError as error:
        yield "fail", f"C++ extension: {error}; reinstall with a C++ compiler (pip install -e .)"
        return
    yield ("ok" if len(hashes) == 2 else "fail"), "C++ extension"


def check_length_model() -> Iterator[Result]:
    """The length model of the package loads."""
    from vllm_goodput.predictor.store import default_model

    try:
        model = default_model()
    except GoodputError as error:
        yield "fail", str(error)
        return
    yield "ok", f"length model of {len(model.gate.tasks)} task types and {len(model.models)} models"


def check_vllm() -> Iterator[Result]:
    """vLLM is present and in the declared range."""
    try:
        yield "ok", f"vLLM {compat.check_vllm()} (supported: {compat.SUPPORTED_VLLM})"
    except GoodputError as error:
        yield "fail", str(error)


def check_command() -> Iterator[Result]:
    """The `vllm` command needs a distribution named vllm."""
    try:
        version("vllm")
    except ImportError:
        yield (
            "warn",
            "the vllm command does not work here (no distribution named vllm); use vllm-goodput serve",
        )


def check_entry_point() -> Iterator[Result]:
    """vLLM will find and load the plugin."""
    found = [e for e in entry_points(group="vllm.general_plugins") if e.name == "goodput"]
    if not found:
        yield "fail", "the vllm.general_plugins entry point is missing; reinstall vllm-goodput"
        return
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "goodput" not in allowed.split(","):
        yield (
            "fail",
            f"VLLM_PLUGINS={allowed!r} leaves out goodput, so --plugin is unknown to vLLM; add it",
        )
        return
    yield "ok", "plugin entry point"


def check_patches() -> Iterator[Result]:
    """Every patch fits the installed vLLM."""
    if find_spec("vllm") is None:
        return
    from vllm_goodput.patches import base, registry

    bad = []
    for patch in registry.everything():
        for target in patch.targets:
            try:
                owner, name = base.resolve(target.path)
                if target.signature is not None and not hasattr(owner, name):
                    bad.append(target.path)
            except GoodputError as error:
                bad.append(str(error))
    count = sum(len(p.targets) for p in registry.everything())
    yield ("fail", f"patches: {'; '.join(bad)}") if bad else ("ok", f"{count} patch targets found")


def check_secret() -> Iterator[Result]:
    """The pool's secret."""
    if envs.pool_secret() is None:
        yield "warn", f"{envs.POOL_SECRET} is not set: instances keep /goodput/v1/* closed"
    else:
        yield "ok", f"{envs.POOL_SECRET} is set"


CHECKS: list[Callable[[], Iterator[Result]]] = [
    check_platform,
    check_native,
    check_length_model,
    check_vllm,
    check_command,
    check_entry_point,
    check_patches,
    check_secret,
]
