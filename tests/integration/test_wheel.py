# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The built wheel holds everything and works outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECK = """
import vllm_goodput, vllm_goodput._C as native
from vllm_goodput.emulation import load_profile, profile_names
from vllm_goodput.patches import registry
import vllm_goodput.kernels, vllm_goodput.gateway.app, vllm_goodput.bench, vllm_goodput.deploy
assert [load_profile(n) for n in profile_names()] and registry.everything()
assert len(native.token_block_hashes([1, 2, 3, 4], 2)) == 2
print(vllm_goodput.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, tracked)):
        if (ROOT / name).is_file():  # a clean copy: stale build output must not hide a missing file
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(source),
        ],
        check=True,
        capture_output=True,
    )
    (path,) = out.glob("*.whl")
    return path


def test_it_contains_every_source_file(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {str(p.relative_to(ROOT)) for p in (ROOT / "vllm_goodput").rglob("*.py")}
    for top in ("kernels", "patches"):
        expected |= {f"vllm_goodput/{p.relative_to(ROOT)}" for p in (ROOT / top).rglob("*.py")}
    expected |= {f"vllm_goodput/profiles/{p.name}" for p in ROOT.glob("vllm_goodput/profiles/*")}
    expected |= {"vllm_goodput/py.typed", "vllm_goodput/_C.pyi"}
    assert expected - names == set()
    assert any(n.startswith("vllm_goodput/_C.") and n.endswith(".so") for n in names)
    assert not any(n.startswith(("kernels/", "patches/", "tests/", "benchmarks/")) for n in names)


def test_it_works_outside_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(site))
