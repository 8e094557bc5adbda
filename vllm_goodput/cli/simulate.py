# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput simulate`: what routing policies would achieve on a pool, without the pool."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from vllm_goodput.cli.interrupts import EXIT_INTERRUPTED
from vllm_goodput.cli.output import check_output_paths, make_console
from vllm_goodput.sim import flags

if TYPE_CHECKING:
    from vllm_goodput.sim.study import Run, Study

HIDDEN = ("command", "pool", "trace", "json", "html", "requests", "note", "policy", "baseline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    flags.add(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate, print and write; returns the exit status."""
    from vllm_goodput.sim.plan import make_study
    from vllm_goodput.sim.progress import SimProgress
    from vllm_goodput.sim.study import complete

    inputs = [path for path in (args.pool, args.trace) if path is not None]
    check_output_paths(args.json, args.html, inputs=inputs)
    study, pool = make_study(args)
    console = make_console(stderr=True)
    console.print(_describe(study, pool.engine), markup=False, highlight=False, soft_wrap=True)
    with _stop_on_interrupt() as stopped, SimProgress(study.simulations, console) as progress:
        runs = complete(list(study.run(progress, stopped)), len(study.policies))
        interrupted = stopped()
    if runs:
        _report(args, study, runs, interrupted)
    else:
        console.print("interrupted before every policy had run once; there is nothing to report")
    return EXIT_INTERRUPTED if interrupted else 0


def _describe(study: Study, engine: str) -> str:
    devices = ", ".join(f"{i.name} ({i.profile.device} x {i.scale:g})" for i in study.instances)
    rows = study.trace(study.seeds[0])
    seeds = f"{len(study.seeds)} seeds, " if len(study.seeds) > 1 else ""
    return (
        f"simulating {', '.join(study.policies)}: {seeds}{len(rows)} requests over {rows[-1].arrival_s:.1f} s on "
        f"{devices}; engines as vLLM's on {engine} where the pool file leaves it open"
    )


def _report(args: argparse.Namespace, study: Study, runs: list[Run], interrupted: bool) -> None:
    from vllm_goodput.bench import trace_sha256, write_json
    from vllm_goodput.sim import report
    from vllm_goodput.sim.study import results

    settings = _settings(args)
    trace: dict[str, Any] = {"name": "generated agentic mix"}
    if args.trace is not None:
        trace = {"name": Path(args.trace).name, "sha256": trace_sha256(args.trace)}
    notes = [*args.note, report.note(study.instances)]
    if interrupted:
        done = len({run.seed for run in runs})
        notes.append(f"interrupted: {done} of {len(study.seeds)} seeds are in these results")
    bound = study.bound([run.seed for run in runs[:: len(study.policies)]]) if args.bound else None
    found = results(runs, settings, trace, notes, bound)
    baseline = args.baseline or study.policies[0]
    if args.html:
        report.write_page(found, baseline, args.html)
    if args.json:
        data = report.as_dict(
            found,
            baseline=baseline,
            settings=settings,
            instances=study.instances,
            interrupted=interrupted,
            requests=args.requests,
        )
        write_json(data, args.json)
    report.print_results(found, baseline, make_console(stderr=args.json == "-"))


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """How it was made."""
    settings = {name: value for name, value in vars(args).items() if name not in HIDDEN}
    return {"pool": Path(args.pool).name, **settings}


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Inside `with`, the first Ctrl-C makes the yielded function true; a second one ends the command at once."""
    interrupted = False

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # such as a script's job in the background
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)
