# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The package as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vllm_goodput


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_it_imports_neither_vllm_nor_torch():
    code = (
        "import sys, vllm_goodput, vllm_goodput.plugin, vllm_goodput.patches.registry; "
        "print([m for m in ('vllm', 'torch', 'pydantic', 'aiohttp') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_public_names_resolve():
    assert (
        run("import vllm_goodput as g; print(g.SLO(e2el_ms=5).e2el_s, callable(g.enable))")
        == "0.005 True"
    )


def test_an_unknown_name_is_an_attribute_error():
    code = "import vllm_goodput\ntry: vllm_goodput.nope\nexcept AttributeError as e: print(e)"
    assert "nope" in run(code)


def modules():
    root = Path(vllm_goodput.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = ".".join(("vllm_goodput", *path.relative_to(root).with_suffix("").parts))
        if not name.endswith("__main__"):
            yield name.removesuffix(".__init__")


def test_every_module_can_be_imported_first():
    """No import order is needed: each module is imported in a process that has imported nothing of ours."""
    code = """
import os, sys
import numpy, pydantic, aiohttp, fastapi, prometheus_client, rich.console, uvloop, yaml, orjson
failed = []
for name in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            __import__(name)
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        failed.append(name)
sys.exit(bool(failed))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *modules()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_and_patches_are_mapped_in():
    assert run("import vllm_goodput.kernels, vllm_goodput.patches.base; print('ok')") == "ok"
