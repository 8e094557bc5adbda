# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Starts a deployment, watches it, and stops all of it.

An instance that dies later is reported and not restarted; the rest goes on. The deployment is over
when its gateway or its last instance has died. Children get a SIGTERM from the kernel when the
thread that runs the event loop ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from vllm_goodput.config import DeploymentConfig, GatewayConfig, RouterConfig, validate
from vllm_goodput.deploy import files, machine
from vllm_goodput.deploy.guardian import Guardian
from vllm_goodput.deploy.health import ChildFailedError, unless_exited, until_healthy
from vllm_goodput.deploy.plan import DEFAULT_COMMAND, ProcessSpec, make_plan
from vllm_goodput.deploy.process import Child
from vllm_goodput.deploy.report import LogReporter, Reporter, Status
from vllm_goodput.errors import DeployError

_TICK_S = 0.5


class Deployment:
    """The processes of one deployment.

    An async context manager: entered once all are healthy, left when all are gone.

    Args:
        config: the deployment; `gateway.port: 0` takes a free port.
        gateway: whether to start the gateway too; `run_gateway` starts others over the same
        instances. start_parallel: instances that start at a time; None means all. command: what
        precedes `serve ...` and `route ...` on each command line. environ: inherited by every
        process; None means this process's own. cpu: whether to add the settings for CPU engines;
        None means where there is no accelerator. reporter: receives news; None means log records of
        `vllm_goodput.deploy`.

    Raises:
        ConfigError: a flag or variable that a deployment cannot take.
    """

    def __init__(
        self,
        config: DeploymentConfig,
        *,
        gateway: bool = True,
        start_parallel: int | None = None,
        command: Sequence[str] = DEFAULT_COMMAND,
        environ: Mapping[str, str] | None = None,
        cpu: bool | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.config = config
        self._environ = dict(os.environ if environ is None else environ)
        cpu = not machine.has_accelerator(self._environ) if cpu is None else cpu
        self.plan = make_plan(config, self._environ, cpu=cpu, command=command)
        self._with_gateway = gateway
        self._parallel = start_parallel or len(config.instances)
        self._reporter: Reporter = LogReporter() if reporter is None else reporter
        self._instances: dict[str, Child] = {}
        self._gateways: dict[str, Child] = {}
        self._statuses: dict[str, Status] = {}
        self._guardian = Guardian(config.stop_timeout_s)
        self._hurry = asyncio.Event()
        self._supervision: asyncio.Task[None] | None = None
        self._failed = False
        self._cleanups: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def gateway_url(self) -> str:
        """Base URL of the gateway.

        Raises:
            DeployError: none was started.
        """
        child = self._gateways.get("gateway")
        if child is None:
            raise DeployError("this deployment runs no gateway")
        return child.spec.url

    @property
    def instance_urls(self) -> dict[str, str]:
        """Base URL of every instance by name, dead ones included."""
        return {spec.name: spec.url for spec in self.plan.instances}

    @property
    def pids(self) -> dict[str, int]:
        """Process id by name of every process that runs."""
        children = {**self._instances, **self._gateways}
        return {name: child.pid for name, child in children.items() if child.returncode is None}

    async def start(self) -> None:
        """Start everything and wait until it is healthy; the caller stops it, also after an error.

        Raises:
            DeployError: a port is taken, the log directory cannot be written, or a process failed.
        """
        self._check()
        self._statuses = {s.name: Status(s.name, s.device) for s in self.plan.instances}
        if self._with_gateway:
            gateway = self.plan.gateway(self.config.gateway, self.config.gateway.port)
            self._statuses["gateway"] = Status("gateway", gateway.device)
        with self._progress():
            await self._start_instances()
            if self._with_gateway:
                await self._start_gateway(self.config.gateway, "gateway")
        self._supervision = asyncio.create_task(self._supervise())

    async def wait(self) -> None:
        """Wait until the deployment is over.

        Raises:
            DeployError: always; its gateway or its last instance has died.
        """
        if self._supervision is None:
            raise DeployError("the deployment is not running")
        await asyncio.shield(self._supervision)

    async def stop(self) -> None:
        """Stop the gateway, then the instances, until nothing is left; may be called again."""
        try:
            if self._supervision is not None:
                self._supervision.cancel()
                await asyncio.gather(self._supervision, return_exceptions=True)
            await self._stop_children(self._gateways.values())
            await self._stop_children(self._instances.values())
            await asyncio.gather(*self._cleanups)
            await self._guardian.close()
        except BaseException:
            for child in (*self._gateways.values(), *self._instances.values()):
                child.signal(signal.SIGKILL)
            raise

    def hurry(self) -> None:
        """Let a stop, running or to come, kill everything at once."""
        self._hurry.set()

    @contextlib.asynccontextmanager
    async def run_gateway(
        self, gateway: GatewayConfig | None = None, *, name: str = "gateway", **router: Any
    ) -> AsyncIterator[str]:
        """Run another gateway over the instances while in the context; its value is the base URL.

        Args:
            gateway: its settings; None means the deployment's.
            name: names its log and pool.yaml; several at a time need several names and ports.
            **router: fields of RouterConfig to change, e.g. `policy="round_robin"`.

        Raises:
            ConfigError: a bad router field.
            DeployError: it did not start, or had died by the end.
        """
        settings = self.config.gateway if gateway is None else gateway
        changed = validate(settings.router.model_dump() | router, RouterConfig, "router")
        child = await self._extra_gateway(settings.model_copy(update={"router": changed}), name)
        try:
            yield child.spec.url
            if child.returncode is not None:
                raise DeployError(self._obituary(child))
        finally:
            await self._stop_children([child])
            self._gateways.pop(name, None)

    async def _extra_gateway(self, settings: GatewayConfig, name: str) -> Child:
        if name in self._gateways or name in self._instances:
            raise DeployError(f"run_gateway: a process named {name!r} is running already")
        self._require_free_ports([self.plan.gateway(settings, settings.port, name)])
        try:
            await self._start_gateway(settings, name)
        except BaseException:
            if name in self._gateways:
                await self._stop_children([self._gateways.pop(name)])
            raise
        return self._gateways[name]

    def _check(self) -> None:
        specs = list(self.plan.instances)
        if self._with_gateway:
            specs.append(self.plan.gateway(self.config.gateway, self.config.gateway.port))
        files.check_log_dir(self.plan.log_dir)
        self._require_free_ports(specs)

    @staticmethod
    def _require_free_ports(specs: Sequence[ProcessSpec]) -> None:
        problems = [(s.name, machine.port_problem(s.host, s.port)) for s in specs if s.port]
        found = [f"{name}: {problem}" for name, problem in problems if problem is not None]
        if found:
            raise DeployError("; ".join(found))

    @contextlib.contextmanager
    def _progress(self) -> Iterator[None]:
        async def tick() -> None:
            while True:
                await asyncio.sleep(_TICK_S)
                self._reporter.tick()

        self._reporter.begin(list(self._statuses.values()))
        ticker = asyncio.create_task(tick())
        try:
            yield
        finally:
            ticker.cancel()
            self._reporter.end()

    async def _start_instances(self) -> None:
        limit, all_healthy = asyncio.Semaphore(self._parallel), asyncio.Event()
        tasks = [
            asyncio.create_task(self._start_instance(spec, limit, all_healthy))
            for spec in self.plan.instances
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _start_instance(
        self, spec: ProcessSpec, limit: asyncio.Semaphore, all_healthy: asyncio.Event
    ) -> None:
        async with limit:
            if self._failed:
                return
            child = self._launch(spec, self._instances)
            await self._until_healthy(child)
        if all(self._statuses[s.name].state == "healthy" for s in self.plan.instances):
            all_healthy.set()
        try:  # one that dies while others still start has failed to start, too
            await unless_exited(child, all_healthy.wait())
        except ChildFailedError as error:
            await self._fail(child, str(error))

    async def _start_gateway(self, settings: GatewayConfig, name: str) -> None:
        port = settings.port or machine.free_port(settings.host)
        spec = self.plan.gateway(settings, port, name)
        pool = self.plan.pool_config(settings, port)
        files.write_atomically(self.plan.pool_path(name), files.pool_yaml(pool))
        await self._until_healthy(self._launch(spec, self._gateways))

    def _launch(self, spec: ProcessSpec, children: dict[str, Child]) -> Child:
        status = self._statuses.setdefault(spec.name, Status(spec.name, spec.device))
        status.device = spec.device  # another gateway may have run under this name
        status.enter("starting")
        children[spec.name] = child = Child.start(spec, self._environ, self._reporter.problem)
        self._guardian.watch(child.pid)
        self._reporter.tick(status)
        return child

    async def _until_healthy(self, child: Child) -> None:
        try:
            await until_healthy(child, self.config.start_timeout_s)
        except ChildFailedError as error:
            await self._fail(child, str(error))
        status = self._statuses[child.spec.name]
        status.enter("healthy")
        self._reporter.tick(status)

    async def _fail(self, child: Child, what: str) -> None:
        status = self._statuses[child.spec.name]
        status.enter("failed")
        self._failed = True
        self._reporter.tick(status)
        tail = await child.tail()
        self._reporter.problem(f"Last lines of {child.spec.log_path}:", tail)
        raise DeployError(f"{child.spec.name} {what}; log: {child.spec.log_path}")

    async def _supervise(self) -> None:
        children = [*self._instances.values(), *self._gateways.values()]
        waits = {asyncio.create_task(child.wait()): child for child in children}
        try:
            while True:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._on_death(waits.pop(task))
        finally:
            for task in waits:
                task.cancel()

    def _on_death(self, child: Child) -> None:
        text = self._obituary(child)
        if child in self._gateways.values():
            raise DeployError(text)
        self._reporter.problem(f"{text}. It is not restarted.")
        # A dead API server may leave its engine behind, and with it the GPU's memory.
        cleanup = asyncio.create_task(self._stop_children([child]))
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)
        if all(instance.returncode is not None for instance in self._instances.values()):
            raise DeployError("no instance is left")

    @staticmethod
    def _obituary(child: Child) -> str:
        return f"{child.spec.name} {child.describe_exit()}; log: {child.spec.log_path}"

    async def _stop_children(self, children: Iterable[Child]) -> None:
        children = list(children)
        timeout_s = self.config.stop_timeout_s
        gone = await asyncio.gather(*(c.stop(timeout_s, self._hurry) for c in children))
        for child, is_gone in zip(children, gone, strict=True):
            if is_gone:
                self._guardian.release(child.pid)
            else:
                self._reporter.problem(f"{child.spec.name}: process group {child.pid} lives on")
