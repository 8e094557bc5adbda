# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The peer routers that `benchmarks.pool_live` compares with, as processes. `make peers` installs them.

They run with their own defaults; only addresses, policy and log level are set. A peer that does not start is no error
of the benchmark: `PeerError` says why, and the peer is reported as not measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from vllm_goodput.deploy import ProcessSpec, machine
from vllm_goodput.deploy.guardian import Guardian
from vllm_goodput.deploy.health import ChildFailedError, unless_exited
from vllm_goodput.deploy.process import Child
from vllm_goodput.errors import ConfigError, GoodputError

VENVS = Path(__file__).parents[1] / ".venv-peers"
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
# After SIGTERM; one of them waits 5 s for load balancers, which there are none of here.
STOP_TIMEOUT_S = 1.0
POLL_S = 0.1
# What follows the program's name.
SUBCOMMANDS: dict[str, tuple[str, ...]] = {
    "vllm-router": (),
    "sglang-router": ("launch",),
    "smg": ("launch",),
}


class PeerError(GoodputError):
    """A peer cannot be measured."""


@dataclass(frozen=True)
class Peer:
    """A peer router under one of its policies.

    Args:
        program: name of the program, and of its environment under `.venv-peers`.
        policy: value of its `--policy`.
        flags: more flags, without dashes.
        venvs: folder of the programs' environments.
    """

    program: str
    policy: str
    flags: tuple[tuple[str, str], ...] = ()
    venvs: Path = VENVS

    @property
    def name(self) -> str:
        """As on the command line of the benchmark."""
        parts = [self.program, self.policy, *(f"{name}={value}" for name, value in self.flags)]
        return ":".join(parts)

    def argv(self, port: int, metrics_port: int, urls: Sequence[str]) -> tuple[str, ...]:
        """The whole command line of a router over the instances at `urls`."""
        settings = {
            "host": HOST,
            "port": str(port),
            "prometheus-host": HOST,
            "prometheus-port": str(metrics_port),
            "log-level": "error",
            "policy": self.policy,
            **dict(self.flags),
        }
        flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
        program = str(self.venvs / self.program / "bin" / self.program)
        return (program, *SUBCOMMANDS[self.program], *flags, "--worker-urls", *urls)

    def problem(self) -> str | None:
        """Why it cannot be started, as far as can be seen beforehand."""
        if not Path(self.argv(0, 0, ())[0]).exists():
            return "not installed; `make peers` installs it where that is possible"
        return None


def parse_peer(text: str) -> Peer:
    """Parse `PROGRAM:POLICY[:FLAG=VALUE...]`.

    Raises:
        ConfigError: another form, or an unknown program.
    """
    program, *rest = text.split(":")
    pairs = [tuple(part.split("=", 1)) for part in rest[1:]]
    if program not in SUBCOMMANDS or not rest or not rest[0] or any(len(p) != 2 for p in pairs):
        raise ConfigError(
            "peers: expected PROGRAM:POLICY[:FLAG=VALUE...] with PROGRAM one of "
            f"{', '.join(SUBCOMMANDS)}, got {text!r}"
        )
    return Peer(program, rest[0], tuple((pair[0], pair[1]) for pair in pairs))


@contextlib.asynccontextmanager
async def run_peer(
    peer: Peer, urls: Sequence[str], log_dir: Path, start_timeout_s: float = START_TIMEOUT_S
) -> AsyncIterator[str]:
    """Run a peer over the instances at `urls` while in the context; its value is the base URL.

    Raises:
        PeerError: it did not start, or had died by the end.
        DeployError: its program cannot be run.
    """
    if (problem := peer.problem()) is not None:
        raise PeerError(problem)
    log_dir.mkdir(parents=True, exist_ok=True)
    spec = _spec(peer, urls, log_dir)
    guardian = Guardian(STOP_TIMEOUT_S)
    child = Child.start(spec, os.environ, lambda text: print(text, file=sys.stderr))
    guardian.watch(child.pid)
    try:
        await _until_ready(child, len(urls), start_timeout_s)
        yield spec.url
        if child.returncode is not None:
            raise PeerError(await _reason(child, child.describe_exit()))
    finally:
        if await child.stop(STOP_TIMEOUT_S, asyncio.Event()):
            guardian.release(child.pid)
        await guardian.close()


def _spec(peer: Peer, urls: Sequence[str], log_dir: Path) -> ProcessSpec:
    port = machine.free_port(HOST)
    while (metrics_port := machine.free_port(HOST)) == port:
        pass
    return ProcessSpec(
        name=peer.name,
        argv=peer.argv(port, metrics_port, urls),
        env={"NO_PROXY": HOST, "no_proxy": HOST},
        url=machine.base_url(HOST, port),
        host=HOST,
        port=port,
        log_path=log_dir / f"{peer.name.replace(':', '-')}.log",
    )


async def _until_ready(child: Child, count: int, timeout_s: float) -> None:
    try:
        await unless_exited(child, asyncio.wait_for(_poll(child.spec.url, count), timeout_s))
    except TimeoutError:
        raise PeerError(await _reason(child, f"not ready within {timeout_s:g} s")) from None
    except ChildFailedError as error:
        raise PeerError(await _reason(child, str(error))) from None


async def _reason(child: Child, what: str) -> str:
    tail = [line for line in await child.tail() if line.strip()]
    return f"{what}: {tail[-1].strip()}" if tail else what


async def _poll(url: str, count: int) -> None:
    """Return once the router counts all of its instances as healthy."""
    timeout = aiohttp.ClientTimeout(total=5.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while await _healthy_instances(session, url) < count:
            await asyncio.sleep(POLL_S)


async def _healthy_instances(session: aiohttp.ClientSession, url: str) -> int:
    try:
        async with session.get(f"{url}/readiness") as response:
            data = await response.json(content_type=None) if response.status == 200 else {}
        return int(data.get("healthy_workers", 0))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, AttributeError):
        return 0
