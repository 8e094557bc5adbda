# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One child process: in a session of its own, logged, stopped with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping

from vllm_goodput.deploy import group
from vllm_goodput.deploy.logs import LogFile, LogPump
from vllm_goodput.deploy.plan import ProcessSpec
from vllm_goodput.errors import DeployError

_POLL_S = 0.05
# After SIGKILL the kernel may still need a moment, e.g. to free GPU memory.
_KILL_WAIT_S = 10.0
# How long to wait for a dead child's last lines; a process that left its group may hold the pipe
# open.
_DRAIN_S = 2.0


class Child:
    """A running process and its group. Make it with `Child.start` inside a running event loop."""

    def __init__(self, spec: ProcessSpec, process: subprocess.Popen[bytes]) -> None:
        self.spec = spec
        self.pid = process.pid
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self._drained = asyncio.Event()
        self._gone = False
        self._pump: LogPump | None = None

    @classmethod
    def start(
        cls, spec: ProcessSpec, environ: Mapping[str, str], warn: Callable[[str], None]
    ) -> Child:
        """Start a process. Synchronous, so that a cancellation cannot lose it.

        Args:
            spec: what to run.
            environ: the environment below `spec.env`.
            warn: gets a line, in the event loop, when the log cannot be written.

        Raises:
            DeployError: the program cannot be run.
        """
        read_fd, write_fd = os.pipe()
        try:
            process = _popen(spec, environ, write_fd)
        except OSError as error:
            os.close(read_fd)
            raise DeployError(f"{spec.name}: cannot run {spec.argv[0]}: {error}") from None
        finally:
            os.close(write_fd)
        child = cls(spec, process)
        child._watch(read_fd, warn)
        return child

    def _watch(self, read_fd: int, warn: Callable[[str], None]) -> None:
        log = LogFile(self.spec.log_path, lambda text: self._post(lambda: warn(text)))
        self._pump = LogPump(read_fd, self.spec.name, log, lambda: self._post(self._drained.set))
        self._pump.note(f"--- started, process {self.pid} ---")
        self._pump.start()
        threading.Thread(target=self._reap, name=f"wait-{self.spec.name}", daemon=True).start()

    def _reap(self) -> None:
        self._process.wait()
        self._post(self._exited.set)

    def _post(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(callback)

    @property
    def returncode(self) -> int | None:
        """Exit status, minus the signal's number if a signal ended it, None while it runs."""
        return self._process.returncode

    async def wait(self) -> None:
        """Wait until the process itself has ended."""
        await self._exited.wait()

    async def tail(self) -> list[str]:
        """Its last lines of output; of a process that has ended, the very last ones."""
        if self.returncode is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), _DRAIN_S)
        return self._pump.tail() if self._pump else []

    def signal(self, signum: int) -> None:
        """Signal its whole group, unless known to be gone (its number may be used again)."""
        if not self._gone:
            group.send(self.pid, signum)

    async def stop(self, timeout_s: float, hurry: asyncio.Event) -> bool:
        """End the process and everything left in its group: SIGTERM, a time to finish, SIGKILL.

        Args:
            timeout_s: time between the two signals, seconds.
            hurry: once set, SIGKILL follows at once.

        Returns:
            Whether all of it is gone; not so only if the kernel cannot end a process.
        """
        if not hurry.is_set():
            self.signal(signal.SIGTERM)
            await self._until_gone(timeout_s, hurry)
        if not self._is_gone():
            self.signal(signal.SIGKILL)
            await self._until_gone(_KILL_WAIT_S, asyncio.Event())
        if self._is_gone():
            await self.wait()
            await self.tail()
        return self._gone

    async def _until_gone(self, timeout_s: float, hurry: asyncio.Event) -> None:
        deadline = self._loop.time() + timeout_s
        while not self._is_gone() and not hurry.is_set() and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_S)

    def _is_gone(self) -> bool:
        self._gone = self._gone or not group.is_alive(self.pid)
        return self._gone

    def describe_exit(self) -> str:
        """E.g. `exited with status 1` or `was killed by SIGKILL`."""
        code = self.returncode
        if code is None:
            return "is running"
        if code >= 0:
            return f"exited with status {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


def _popen(
    spec: ProcessSpec, environ: Mapping[str, str], output_fd: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        spec.argv,
        env={**environ, **spec.env},
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        start_new_session=True,
        preexec_fn=group.death_signal_setter(),
    )
