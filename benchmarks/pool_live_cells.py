# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The cells of `benchmarks.pool_live` (SLO level x repeat x router), their order, and the results kept on disk.

A finished cell is one JSON file; with the run's settings beside it, an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from vllm_goodput.bench import read_json
from vllm_goodput.errors import ConfigError
from vllm_goodput.files import replace_file

Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One replay.

    Args:
        level: SLO level.
        repeat: from 0.
        router: its name.
    """

    level: float
    repeat: int
    router: str

    @property
    def key(self) -> str:
        """Unique; also names its file."""
        router = re.sub(r"[^A-Za-z0-9_.=-]", "-", self.router)
        return f"slo{self.level:g}-repeat{self.repeat + 1}-{router}"


def plan(levels: Sequence[float], repeats: int, routers: Sequence[str]) -> list[Cell]:
    """All cells in their order: every repeat goes through all levels, every other one in reverse."""
    cells: list[Cell] = []
    for repeat in range(repeats):
        turn = [Cell(level, repeat, router) for level in levels for router in routers]
        cells += turn if repeat % 2 == 0 else turn[::-1]
    return cells


class Store:
    """Results under a folder.

    Args:
        folder: where; made if needed.
        resume: keep what an earlier run left; else that is moved to `previous`.
    """

    def __init__(self, folder: Path, resume: bool) -> None:
        self._cells = folder / "cells"
        self._settings = self._cells / "settings.json"
        if not resume and self._cells.exists():
            previous = folder / "previous"
            shutil.rmtree(previous, ignore_errors=True)
            self._cells.rename(previous)
        self._cells.mkdir(parents=True, exist_ok=True)

    def settings(self) -> dict[str, Any] | None:
        """What the kept cells were measured with; None if there are none."""
        if not self._settings.exists():
            return None
        data: dict[str, Any] = orjson.loads(self._settings.read_bytes())
        return data

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Note the settings, all of which change what a cell measures.

        Raises:
            ConfigError: kept cells were measured with others.
        """
        kept = self.settings()
        if kept is None:
            replace_file(self._settings, orjson.dumps(dict(settings), option=orjson.OPT_INDENT_2))
            return
        given = orjson.loads(orjson.dumps(dict(settings)))
        differing = [name for name in kept | given if kept.get(name) != given.get(name)]
        if differing:
            what = "; ".join(
                f"{n}: {kept.get(n)!r} kept, {given.get(n)!r} given" for n in differing
            )
            raise ConfigError(f"resume: the cells in {self._cells} have other settings ({what})")

    def load(self, cell: Cell) -> Result | None:
        """A finished cell's result, or None."""
        path = self._path(cell)
        return read_json(path) if path.exists() else None

    def save(self, cell: Cell, result: Result) -> None:
        """Keep a finished cell's result."""
        data = orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        replace_file(self._path(cell), data)

    def _path(self, cell: Cell) -> Path:
        return self._cells / f"{cell.key}.json"
