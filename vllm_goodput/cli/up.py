# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`vllm-goodput up`: run the instances and the gateway of a deployment.yaml until Ctrl-C.

GPUs are assigned by each instance's `env: {CUDA_VISIBLE_DEVICES: ...}`. Where the machine has none,
instances get the settings that several vLLM CPU engines need side by side, unless set otherwise
(see `deploy/machine.py`; `args: {enforce-eager: null}` leaves one out). `--dry-run` shows them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_goodput.config import DeploymentConfig, load_yaml
from vllm_goodput.emulation import load_profile
from vllm_goodput.errors import ConfigError

if TYPE_CHECKING:
    from vllm_goodput.deploy import Deployment, Reporter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("config", metavar="deployment.yaml", help="instances and gateway")
    parser.add_argument("--log-dir", help="where logs and pool.yaml go (default: log_dir)")
    parser.add_argument(
        "--start-timeout-s",
        type=float,
        metavar="S",
        help="seconds each process may take to become healthy (default: start_timeout_s)",
    )
    parser.add_argument(
        "--start-parallel",
        type=int,
        metavar="N",
        help="start at most N instances at a time (default: all)",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="PATH",
        help="JSON with process ids and URLs, written when everything is healthy, removed at stop",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the commands and the generated pool.yaml, start nothing",
    )


def run(args: argparse.Namespace, command: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        args: the parsed command line.
        command: what starts a child, before `serve ...` and `route ...`; None means this package.

    Raises:
        ConfigError: a bad file or argument.
        DeployError: the deployment did not start, or ended by itself.
    """
    config = _config(args)
    # Only now: importing takes a moment, and bad arguments should be reported at once.
    from vllm_goodput.deploy import DEFAULT_COMMAND, Deployment
    from vllm_goodput.deploy.files import dry_run
    from vllm_goodput.deploy.report import make_reporter

    reporter = make_reporter()
    deployment = Deployment(
        config,
        start_parallel=args.start_parallel,
        command=DEFAULT_COMMAND if command is None else command,
        reporter=reporter,
    )
    if args.dry_run:
        print(dry_run(deployment.plan), end="")
        return 0
    return asyncio.run(_until_stopped(deployment, reporter, args.ready_file))


def _config(args: argparse.Namespace) -> DeploymentConfig:
    config = load_yaml(args.config, DeploymentConfig)
    if args.start_parallel is not None and args.start_parallel < 1:
        raise ConfigError(f"--start-parallel: must be 1 or more, got {args.start_parallel}")
    if args.start_timeout_s is not None and not 0 < args.start_timeout_s < float("inf"):
        raise ConfigError(f"--start-timeout-s: must be more than 0, got {args.start_timeout_s}")
    if args.ready_file is not None and not args.ready_file.absolute().parent.is_dir():
        raise ConfigError(f"--ready-file: must be in an existing directory, got {args.ready_file}")
    for instance in config.instances:
        if instance.emulate is not None:
            load_profile(
                instance.emulate.profile
            )  # an unknown one is better told now than by the engine
    changes = {"log_dir": args.log_dir, "start_timeout_s": args.start_timeout_s}
    return config.model_copy(update={k: v for k, v in changes.items() if v is not None})


async def _until_stopped(
    deployment: Deployment, reporter: Reporter, ready_file: Path | None
) -> int:
    _remove(ready_file)  # left by one that was killed
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            deployment.hurry()
        else:
            count = len(deployment.pids)
            reporter.line(f"Stopping {count} processes; Ctrl-C again kills them at once.")
            stop.set()

    _handle_signals(on_signal)
    try:
        await _first(stop.wait(), _serve(deployment, reporter, ready_file))
    finally:
        _remove(ready_file)
        await deployment.stop()
    return 0


async def _first(
    stopping: Coroutine[Any, Any, object], serving: Coroutine[Any, Any, object]
) -> None:
    """Return when asked to stop, raise what ended the deployment otherwise."""
    tasks = [asyncio.ensure_future(stopping), asyncio.ensure_future(serving)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(deployment: Deployment, reporter: Reporter, ready_file: Path | None) -> None:
    await deployment.start()
    if ready_file is not None:
        from vllm_goodput.deploy.files import write_atomically

        write_atomically(ready_file, _ready(deployment), mode=0o644)
    plan = deployment.plan
    reporter.line(f"Gateway:   {deployment.gateway_url}/v1")
    for spec in plan.instances:
        reporter.line(f"Instance:  {spec.url}  {spec.name} [{spec.device}]")
    reporter.line(f"Logs:      {plan.log_dir}")
    reporter.line("Press Ctrl-C to stop.")
    await deployment.wait()


def _ready(deployment: Deployment) -> str:
    data = {
        "pid": os.getpid(),
        "gateway_url": deployment.gateway_url,
        "urls": deployment.instance_urls,
        "pids": deployment.pids,
        "log_dir": str(deployment.plan.log_dir),
    }
    return json.dumps(data, indent=2) + "\n"


def _remove(ready_file: Path | None) -> None:
    if ready_file is not None:
        with contextlib.suppress(OSError):
            ready_file.unlink(missing_ok=True)


def _handle_signals(callback: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(signum, callback)
