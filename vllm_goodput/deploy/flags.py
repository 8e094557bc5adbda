# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""vLLM flags given as a mapping: checked, merged, and turned into command-line arguments.

Keys are flag names without leading dashes; `_` and `-` are the same before the first dot (vLLM's
dotted JSON flags keep what follows). Each value is one argument, so flags that take several values
cannot be given several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vllm_goodput.errors import ConfigError

Flag = str | int | float | bool | None

# Set by fields of their own in deployment.yaml.
RESERVED = {"host": "host", "port": "port", "model": "model"}


def normalise(flags: Mapping[str, Flag], where: str) -> dict[str, Flag]:
    """Spell every key as vLLM does.

    Args:
        flags: one `args` mapping of deployment.yaml.
        where: its path there, for errors.

    Raises:
        ConfigError: a key is malformed, reserved, or given twice in two spellings.
    """
    result: dict[str, Flag] = {}
    for key, value in flags.items():
        name = _spell(key, where)
        if name in result:
            raise ConfigError(f"{where}.{key}: the flag --{name} is given twice")
        result[name] = value
    return result


def _spell(key: str, where: str) -> str:
    head, dot, rest = key.partition(".")
    name = head.replace("_", "-") + dot + rest
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", name):
        raise ConfigError(f"{where}: expected flag names without leading dashes, got {key!r}")
    if name in RESERVED:
        raise ConfigError(f"{where}.{key}: use the field {RESERVED[name]!r} instead of this flag")
    return name


def render(flags: Mapping[str, Flag]) -> list[str]:
    """Command line: `16` -> `--k 16`, true -> `--k`, false -> `--no-k`, null -> nothing."""
    argv: list[str] = []
    for name, value in flags.items():
        if value is None:
            continue
        if isinstance(value, bool):
            argv.append(f"--{name}" if value else f"--no-{name}")
        elif str(value).startswith("-"):  # argparse would read the value as a flag
            argv.append(f"--{name}={value}")
        else:
            argv += [f"--{name}", str(value)]
    return argv
