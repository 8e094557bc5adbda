# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Follows the KV events that an instance publishes (`vllm serve --kv-events-config '{"publisher": "zmq", ...}'`).

A message is (topic, 8-byte sequence number, msgpack of [time, events, data-parallel rank]). Numbers count from 0 in
each engine. What was missed (a late start, a full queue, a lost connection) is asked for at the replay endpoint, where
one is configured; what cannot be had makes the instance's keys unknown, and they are learned anew from what it stores
from then on. After a reconnection everything is asked for again, since it may be another engine. A silent instance is
asked now and then, lest the last message before the silence was one of those missed.

Limits: one endpoint an instance, so of a data-parallel one only the rank that publishes there. At most QUEUE messages
wait in memory; more are missed. Events are believed: keep their port inside the pool's network.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

from vllm_goodput.config import InstanceConfig
from vllm_goodput.errors import ConfigError
from vllm_goodput.gateway.kv_blocks import (
    KvBlocks,
    KvEventCounters,
    KvEventSink,
    MalformedEventError,
)

if TYPE_CHECKING:
    import zmq.asyncio

log = logging.getLogger(__name__)

QUEUE = 10_000
MAX_MESSAGE_BYTES = 2**26
# Of a replay: for the next message, and for all of it, seconds.
REPLAY_SILENCE_S = 3.0
REPLAY_S = 30.0
# How long after a connection is made an instance is asked again for what the subscription came too late for, seconds.
SETTLED_S = 1.0
HEARTBEAT_MS = 5000
RETRY_S = 1.0
# Messages handled before others get their turn of the event loop.
TURN = 32


def zmq_context() -> zmq.asyncio.Context:
    """A context for the sockets of any number of watches; one thread does their input and output.

    Raises:
        ConfigError: what KV events need is not installed.
    """
    try:
        import msgspec  # noqa: F401
        import zmq.asyncio
    except ImportError as error:
        raise ConfigError(
            f"kv_events: needs {error.name}, which comes with vLLM; or pip install 'vllm-goodput[kv-events]'"
        ) from None
    return zmq.asyncio.Context()


class KvEventWatch:
    """Follows one instance's events.

    Args:
        config: the instance; its `kv_events` must be set.
        sink: told what the instance holds, in the event loop.
        model: the base model's name as prompts' keys have it; adapters go by their own.
        context: shared by all watches (`zmq_context()`).
        silent_s: after so long a silence the instance is asked whether it has told everything.
    """

    def __init__(
        self,
        config: InstanceConfig,
        sink: KvEventSink,
        model: str | None,
        context: zmq.asyncio.Context,
        silent_s: float = 30.0,
    ) -> None:
        if config.kv_events is None:
            raise ValueError(f"instance {config.name} has no kv_events")
        self._name = config.name
        self._endpoint = config.kv_events
        self._replay_endpoint = config.kv_events_replay
        self._context = context
        self._silent_s = silent_s
        self._task: asyncio.Task[None] | None = None
        self.counters = KvEventCounters()
        self._blocks = KvBlocks(config.name, model, sink, self.counters)
        self._applied = -1  # the last message of this engine that was applied
        self._live = -1  # the last one that came by itself

    @property
    def blocks(self) -> int:
        """Blocks of the engine that are known."""
        return len(self._blocks)

    def start(self) -> None:
        """Begin following; what the sink may know from before is not relied on."""
        self._blocks.lose()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End following; what was told stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        import zmq

        while True:
            try:
                await self._follow()
            except zmq.ZMQError as error:
                log.warning("KV events of instance %s: %s", self._name, error)
            except Exception:
                log.exception("KV events of instance %s", self._name)
            self._blocks.lose()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        import zmq
        import zmq.asyncio

        with self._socket(zmq.SUB) as events:
            monitor = events.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            )
            try:
                events.setsockopt(zmq.SUBSCRIBE, b"")
                events.connect(self._endpoint)
                poller = zmq.asyncio.Poller()
                poller.register(events, zmq.POLLIN)
                poller.register(monitor, zmq.POLLIN)
                wait_s = self._silent_s
                while True:
                    ready = dict(await poller.poll(int(1e3 * wait_s)))
                    wait_s = self._silent_s
                    if monitor in ready:
                        what, *_ = await monitor.recv_multipart()
                        if int.from_bytes(what[:2], sys.byteorder) == zmq.EVENT_DISCONNECTED:
                            self._blocks.lose()
                            continue
                        await self._connected()
                        wait_s = min(SETTLED_S, self._silent_s)
                    elif events in ready:
                        await self._receive(events)
                    else:
                        await self._replay()
            finally:
                events.disable_monitor()
                monitor.close(linger=0)

    async def _receive(self, events: zmq.asyncio.Socket) -> None:
        import zmq

        for _ in range(TURN):
            try:
                frames = await events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            await self._message(frames)
        await asyncio.sleep(0)

    async def _connected(self) -> None:
        """A connection is made: the first one, or again, to what may be another engine."""
        if self._live >= 0 or self._applied >= 0:
            self.counters.restarts += 1
        self._blocks.lose()
        self._applied = self._live = -1
        await self._replay()

    async def _message(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            self._malformed("unexpected frames")
            return
        number = int.from_bytes(frames[1], "big")
        if number <= self._live:  # numbers only grow as long as the engine is the same
            self.counters.restarts += 1
            self._blocks.clear()
            self._applied = -1
        self._live = number
        if number > self._applied + 1:
            await self._gap(number)
        if number > self._applied:  # else it came with a replay
            self._apply(number, frames[2])

    async def _gap(self, number: int) -> None:
        """Messages before this one were missed."""
        late = self._applied < 0  # the engine has been at work before we came
        self.counters.gaps += not late
        await self._replay()
        if number <= self._applied + 1:
            self.counters.repaired += not late
        elif not late:
            self._blocks.lose()

    async def _replay(self) -> None:
        """Ask for all messages behind the last one applied, and apply what comes."""
        if self._replay_endpoint is None:
            return
        import zmq

        with self._socket(zmq.DEALER) as replay:
            replay.connect(self._replay_endpoint)
            await replay.send_multipart([b"", (self._applied + 1).to_bytes(8, "big")])
            try:
                async with asyncio.timeout(REPLAY_S):
                    while await self._replayed(replay):
                        pass
            except TimeoutError:
                log.warning("KV events of instance %s: the replay broke off", self._name)

    async def _replayed(self, replay: zmq.asyncio.Socket) -> bool:
        """Take one message of a replay; whether more will come."""
        async with asyncio.timeout(REPLAY_SILENCE_S):
            frames = await replay.recv_multipart()
        if len(frames) != 4 or len(frames[2]) != 8:
            self._malformed("unexpected frames of a replay")
            return False
        number = int.from_bytes(frames[2], "big", signed=True)
        if number < 0:
            return False
        if number > self._applied + 1 and self._applied >= 0:
            self._blocks.lose()  # what is between is no longer to be had
        if number > self._applied:
            self._apply(number, frames[3])
        if number % TURN == 0:
            await asyncio.sleep(0)
        return True

    def _apply(self, number: int, payload: bytes) -> None:
        import msgspec

        self._applied = number
        self.counters.batches += 1
        try:
            batch: Any = msgspec.msgpack.decode(payload)
            if not isinstance(batch, list) or len(batch) < 2:
                raise MalformedEventError("not a batch of events")
            self._blocks.apply(batch[1])
        except (msgspec.DecodeError, MalformedEventError) as error:
            self._malformed(str(error))

    def _malformed(self, why: str) -> None:
        """What cannot be read may have said anything."""
        self.counters.malformed += 1
        if self.counters.malformed == 1:
            log.warning("KV events of instance %s cannot be read: %s", self._name, why)
        self._blocks.lose()

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        import zmq

        socket = self._context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = QUEUE
        for option, value in (
            (zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            (zmq.RECONNECT_IVL_MAX, HEARTBEAT_MS),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS),
            (zmq.IPV6, 1),
        ):
            socket.setsockopt(option, value)
        return socket
