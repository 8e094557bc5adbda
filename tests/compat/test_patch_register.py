# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The register of patches against its files, the installed vLLM, and the newest release's sources."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

import vllm_goodput.patches
from vllm_goodput.patches import registry
from vllm_goodput.patches.base import Patch, Target

NEWEST = Path(__file__).parents[2] / ".cache" / "vllm-0.33.0"
NOT_PATCHES = {"__init__.py", "base.py", "registry.py"}


def source_roots() -> dict[str, Path]:
    spec = find_spec("vllm")
    assert spec is not None, "the tests need vLLM"
    assert spec.origin is not None
    return {"installed": Path(spec.origin).parents[1], "newest": NEWEST}


def find_node(root: Path, target: Target) -> ast.AST | None:
    """The definition that a target names, found by reading; classes are searched for the last part."""
    module, dotted = target.path.split(":")
    base = root / Path(*module.split("."))
    file = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
    node: ast.AST = ast.parse(file.read_text())
    for part in dotted.split("."):
        found = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and child.name == part
        ]
        if not found:
            return None
        node = found[-1]
    return node


def targets() -> list[tuple[Patch, Target]]:
    return [(p, t) for p in registry.everything() for t in p.targets]


def test_every_patch_file_is_registered_and_every_entry_has_its_file():
    (root,) = vllm_goodput.patches.__path__
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in Path(root).rglob("*.py")
        if path.name not in NOT_PATCHES
    }
    assert files == {*registry.FLAGS, *registry.ENABLED}


def test_names_are_unique_and_match_their_files():
    for name in (*registry.FLAGS, *registry.ENABLED):
        assert registry.load(name).name == name.rpartition(".")[2]


def test_every_patch_says_why_how_and_when_it_goes():
    for patch in registry.everything():
        assert min(len(patch.why), len(patch.how), len(patch.remove_when)) > 20, patch.name


@pytest.mark.parametrize("root", ["installed", "newest"])
@pytest.mark.parametrize(("patch", "target"), targets(), ids=lambda x: getattr(x, "path", ""))
def test_target_exists_with_the_recorded_signature(root: str, patch: Patch, target: Target):
    path = source_roots()[root]
    assert path.exists(), f"{path} is missing: run scripts/fetch-vllm-sources"
    node = find_node(path, target)
    if target.signature is None:
        owner = Target(target.path.rpartition(".")[0], None, target.wrap)
        assert node is None, f"vLLM now has {target.path} itself; patch {patch.name} would hide it"
        assert find_node(path, owner) is not None
        return
    assert isinstance(node, ast.FunctionDef), f"{target.path} is gone"
    assert f"({ast.unparse(node.args)})" == target.signature
