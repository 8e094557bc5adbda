# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A publisher of KV events on real ZeroMQ sockets, with messages of the form of vLLM's."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import zmq
import zmq.asyncio

END = (-1).to_bytes(8, "big", signed=True)


def block_name(parent: int | None, tokens: list[int], extra: Any = None) -> int:
    """As vLLM names blocks: 64 bits of a chained hash."""
    digest = hashlib.sha256(repr((parent, tokens, extra)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def stored(
    tokens: list[int], size: int = 16, parent: int | None = None, **more: Any
) -> dict[str, Any]:
    """A BlockStored event of the full blocks of `tokens` behind the block `parent`."""
    names, last = [], parent
    count = len(tokens) // size
    for i in range(count):
        extra = (more.get("extra_keys") or [None] * count)[i]
        last = block_name(last, tokens[i * size : (i + 1) * size], (more.get("lora_name"), extra))
        names.append(last)
    event = {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": tokens[: count * size],
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return event | more


def removed(names: list[int], **more: Any) -> dict[str, Any]:
    """A BlockRemoved event."""
    return {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU", "group_idx": 0} | more


CLEARED = {"type": "AllBlocksCleared"}


class KvPublisher:
    """Numbers messages from 0 and repeats the last `keep` on request; use as an async context manager.

    Args:
        port: 0 for any; of the events, and the next free one of the replay.
        keep: messages kept for a replay.
        replays: whether it answers at the replay endpoint.
    """

    def __init__(self, port: int = 0, replay_port: int = 0, keep: int = 1000, replays: bool = True):
        self._ports = port, replay_port
        self._keep = keep
        self._replays = replays
        self.sent: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self._next = 0

    async def __aenter__(self) -> KvPublisher:
        self._context = zmq.asyncio.Context()
        self._events = self._context.socket(zmq.XPUB)
        self._replay = self._context.socket(zmq.ROUTER)
        for socket, port in zip((self._events, self._replay), self._ports, strict=True):
            socket.linger = 0
            socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.port, self.replay_port = (
            int(s.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
            for s in (self._events, self._replay)
        )
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.replay_endpoint = f"tcp://127.0.0.1:{self.replay_port}"
        self._task = asyncio.create_task(self._serve_replays()) if self._replays else None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Wait for a subscriber; what was published before does not reach it."""
        async with asyncio.timeout(20):
            while not (await self._events.recv()).startswith(b"\x01"):
                pass

    async def publish(self, *events: Any, lose: bool = False) -> None:
        """Send events in one message; with `lose`, only keep them for a replay."""
        await self.publish_raw(msgspec.msgpack.encode([0.0, list(events), 0]), lose=lose)

    async def publish_raw(self, payload: bytes, lose: bool = False) -> None:
        number = self._next
        self._next += 1
        self.sent = [*self.sent, (number, payload)][-self._keep :]
        if not lose:
            await self._events.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def restart(self) -> None:
        """Number from 0 again, as a new engine does, without losing the connection."""
        self._next, self.sent = 0, []

    async def _serve_replays(self) -> None:
        while True:
            client, empty, start = await self._replay.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for number, payload in list(self.sent):
                if number >= first:
                    frames = [client, empty, b"", number.to_bytes(8, "big"), payload]
                    await self._replay.send_multipart(frames)
            await self._replay.send_multipart([client, empty, b"", END, b""])
