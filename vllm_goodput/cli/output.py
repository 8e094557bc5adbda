# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Where subcommands write: consoles, and files that are checked before the work and appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_goodput.errors import ConfigError
from vllm_goodput.files import replace_file

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 120


def make_console(*, stderr: bool) -> Console:
    """A console; where it is no terminal, wide enough for the tables."""
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def check_output_paths(*paths: str | None, inputs: Iterable[str]) -> None:
    """Fail before the run, not after it; never write over an input or another output.

    Raises:
        ConfigError: a path is in use or no file can be there.
    """
    taken = {Path(path).resolve() for path in inputs}
    for path in paths:
        if path is None or path == "-":
            continue
        if Path(path).resolve() in taken:
            raise ConfigError(f"cannot write {path}: it is also an input or another output")
        taken.add(Path(path).resolve())
        folder = Path(path).absolute().parent
        if not folder.is_dir() or (Path(path).exists() and not Path(path).is_file()):
            raise ConfigError(f"cannot write {path}: not a file in an existing directory")
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"cannot write {path}: the directory is not writable")


def write_whole(path: str | Path, data: bytes) -> None:
    """Replace `path` by a file with `data`; an interrupt leaves what was there before.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        replace_file(Path(path).resolve(), data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
