# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What a patch is, and how one is applied.

A patch file defines `PATCH`. Its targets are named by text, so that listing the patches imports nothing of vLLM, and
each records the signature it was written against, so that a test can compare it with any vLLM's sources.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vllm_goodput.errors import UnsupportedVLLMError

_MARK = "__goodput_patch__"


@dataclass(frozen=True)
class Target:
    """One attribute of vLLM that is replaced, or added where `signature` is None.

    Args:
        path: `package.module:Class.attribute` or `package.module:function`.
        signature: parameters as in vLLM's source, e.g. `(self, throttle_prefills: bool=False)`.
        wrap: takes the original attribute (None where added) and returns its replacement.
    """

    path: str
    signature: str | None
    wrap: Callable[[Any], Any]


@dataclass(frozen=True)
class Patch:
    """A named change to vLLM with the reasons for it.

    Args:
        name: unique name, the file's.
        targets: what is replaced.
        why: what needs it and why no official seam serves.
        how: what the replacement does.
        supported: vLLM versions it is known to fit.
        upstream: issue or pull request that would make it needless, if there is one.
        remove_when: condition for deleting the file.
    """

    name: str
    targets: tuple[Target, ...]
    why: str
    how: str
    supported: str
    remove_when: str
    upstream: str | None = None

    def apply(self) -> None:
        """Replace the targets; does nothing where it is already done.

        Raises:
            UnsupportedVLLMError: a target does not exist in this vLLM.
        """
        for target in self.targets:
            _apply(self.name, target)


def resolve(path: str) -> tuple[Any, str]:
    """Return the owner (module or class) and attribute name of a target path.

    Raises:
        UnsupportedVLLMError: the module or class does not exist.
    """
    module_name, _, dotted = path.partition(":")
    *parents, attribute = dotted.split(".")
    try:
        owner: Any = import_module(module_name)
        for parent in parents:
            owner = getattr(owner, parent)
    except (ImportError, AttributeError) as error:
        raise UnsupportedVLLMError(f"this vLLM has no {path}: {error}") from None
    return owner, attribute


def _apply(name: str, target: Target) -> None:
    owner, attribute = resolve(target.path)
    raw = inspect.getattr_static(owner, attribute, None)
    if raw is None and target.signature is not None:
        raise UnsupportedVLLMError(f"this vLLM has no {target.path}, which patch {name} replaces")
    original = _unwrap(raw)
    if getattr(original, _MARK, None) == name:
        return
    replacement = target.wrap(original)
    setattr(replacement, _MARK, name)
    setattr(owner, attribute, _rewrap(raw, replacement))


def _unwrap(raw: Any) -> Any:
    return raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw


def _rewrap(raw: Any, replacement: Any) -> Any:
    """Give the replacement the kind (static, class method, plain) of what it replaces."""
    return type(raw)(replacement) if isinstance(raw, staticmethod | classmethod) else replacement
