# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What every benchmark shares: its command line, and the shape of its JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from operator import ge, le
from typing import Any

from vllm_goodput.bench.result import machine, write_json
from vllm_goodput.cli.help import HelpFormatter

OPERATORS = {">=": ge, "<=": le}


@dataclass(frozen=True)
class Target:
    """A figure to reach; `value` is None where it was not measured."""

    name: str
    value: float | None
    op: str
    target: float

    @property
    def met(self) -> bool | None:
        """Whether it was reached; None where not measured."""
        return None if self.value is None else bool(OPERATORS[self.op](self.value, self.target))


def parser(doc: str) -> argparse.ArgumentParser:
    """A parser with the flags that every benchmark has."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0], formatter_class=HelpFormatter)
    made.add_argument("--quick", action="store_true", help="a short form, for a first look")
    made.add_argument("--json", metavar="PATH", help="write the result here; - is standard output")
    return made


def report(
    name: str,
    settings: dict[str, Any],
    results: Sequence[dict[str, Any]],
    targets: Sequence[Target] = (),
) -> dict[str, Any]:
    """The JSON of a benchmark run."""
    return {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": settings,
        "results": list(results),
        "targets": [{**asdict(t), "met": t.met} for t in targets],
    }


def write(data: dict[str, Any], path: str | None) -> None:
    """Write the JSON where the command line says."""
    if path is not None:
        write_json(data, path)
