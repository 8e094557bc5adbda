# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The watch of KV events against a publisher on real ZeroMQ sockets."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.fakes.kv_publisher import CLEARED, KvPublisher, removed, stored
from tests.fakes.kv_sink import Indexed
from vllm_goodput.config import InstanceConfig
from vllm_goodput.errors import ConfigError
from vllm_goodput.gateway.kv_events import KvEventWatch, zmq_context
from vllm_goodput.router.prefix import token_blocks

PROMPT = list(range(1000, 1160))  # ten blocks
OTHER = list(range(2000, 2160))


class Held(Indexed):
    """A sink that knows its instance's name, and answers for prompts."""

    def __init__(self) -> None:
        super().__init__(10_000)

    def stored(self, instance, hashes, parent) -> None:
        assert instance == "a"
        super().stored(instance, hashes, parent)

    def match(self, prompt=PROMPT, model="m", salt=None) -> int:
        blocks = token_blocks(prompt, model, salt)
        assert blocks is not None
        return int(self.index.match(blocks.hashes)[0])


@asynccontextmanager
async def watching(publisher: KvPublisher, replay: bool = True, silent_s: float = 60.0):
    config = InstanceConfig(
        name="a",
        url="http://127.0.0.1:1",
        kv_events=publisher.endpoint,
        kv_events_replay=publisher.replay_endpoint if replay else None,
    )
    held, context = Held(), zmq_context()
    watch = KvEventWatch(config, held, "m", context, silent_s)
    watch.start()
    try:
        await publisher.subscribed()
        yield watch, held
    finally:
        await watch.stop()
        context.destroy(linger=0)


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_stored_removed_and_cleared():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        first = stored(PROMPT[:64])
        rest = stored(PROMPT[64:], parent=first["block_hashes"][-1])
        await publisher.publish(first)
        await publisher.publish(rest, stored(OTHER))
        await until(lambda: watch.counters.batches == 2)
        assert held.match() == 10
        assert held.match(PROMPT[:100] + OTHER) == 6
        assert held.match(OTHER) == 10
        await publisher.publish(removed(rest["block_hashes"][3:]), removed([12345]))
        await until(lambda: watch.counters.batches == 3)
        assert held.match() == 7
        assert watch.blocks == 17
        await publisher.publish(CLEARED)
        await until(lambda: held.cleared_times == 1)
        assert held.match() == held.match(OTHER) == watch.blocks == 0
        assert (watch.counters.gaps, watch.counters.malformed, watch.counters.restarts) == (0, 0, 0)


async def test_a_block_in_copies_is_gone_with_the_last():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        chain = stored(PROMPT)
        last = stored(PROMPT[144:], parent=chain["block_hashes"][8])
        assert last["block_hashes"] == chain["block_hashes"][9:]
        await publisher.publish(chain, last, last)
        await publisher.publish(stored(PROMPT))  # tells of reuse; no further copies
        for number in range(3):
            await publisher.publish(removed(last["block_hashes"]))
            await until(lambda n=number: watch.counters.batches == 3 + n)
            assert held.match() == (9 if number == 2 else 10)


async def test_larger_blocks_have_several_keys():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        first = stored(PROMPT[:64], 64)
        await publisher.publish(first, stored(PROMPT[64:128], 64, first["block_hashes"][-1]))
        await until(lambda: watch.counters.batches == 1)
        assert held.match() == 8
        await publisher.publish(removed(first["block_hashes"]))
        await until(lambda: watch.counters.batches == 2)
        assert held.match() == 0
        assert len(held.index) == 4


async def test_larger_blocks_may_begin_alike():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        one = stored(PROMPT[:96], 32)
        fork = stored(PROMPT[64:80] + OTHER[:16], 32, parent=one["block_hashes"][1])
        await publisher.publish(one, fork)
        await publisher.publish(removed(one["block_hashes"][2:]))
        await until(lambda: watch.counters.batches == 2)
        assert held.match() == 5
        assert held.match(PROMPT[:80] + OTHER) == 6
        await publisher.publish(removed(fork["block_hashes"]))
        await until(lambda: watch.counters.batches == 3)
        assert held.match() == held.match(PROMPT[:80] + OTHER) == len(held.index) == 4


async def test_adapters_and_salts_are_apart():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        await publisher.publish(
            stored(PROMPT, lora_name="lora", extra_keys=[["lora"]] * 10),
            stored(OTHER, extra_keys=[["salt"], *[None] * 9]),
            stored(PROMPT[:32], lora_name="lora", extra_keys=[["lora", "pepper"], ["lora"]]),
        )
        await until(lambda: watch.counters.batches == 1)
        assert held.match() == held.match(OTHER) == 0
        assert held.match(model="lora") == 10
        assert held.match(OTHER, salt="salt") == 10
        assert held.match(model="lora", salt="pepper") == 2


async def test_what_has_no_token_keys_is_left_out():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        image = [None, None, [["image", 3]], None, *[None] * 6]
        with_image = stored(PROMPT, extra_keys=image)
        await publisher.publish(
            with_image,
            stored(OTHER, parent=with_image["block_hashes"][-1]),  # behind the image
            stored(OTHER, parent=4711),  # behind what was never told
            stored(OTHER, 10),  # no multiple of 16 tokens
            stored(OTHER, medium="CPU"),
            stored(OTHER, group_idx=1, kv_cache_spec_kind="sliding_window"),
            stored(OTHER, locality="REMOTE"),
            {"type": "SomethingNew"},
        )
        await publisher.publish(removed(with_image["block_hashes"], medium="CPU"))
        await publisher.publish(removed(with_image["block_hashes"], group_idx=1))
        await until(lambda: watch.counters.batches == 3)
        assert held.match() == len(held.index) == 2
        assert watch.counters.unkeyed == 8 + 10 + 10 + 16
        assert watch.counters.malformed == 0


async def test_a_late_start_is_made_up_by_a_replay():
    async with KvPublisher() as publisher:
        await publisher.publish(stored(PROMPT[:64]))
        await publisher.publish(stored(OTHER))
        async with watching(publisher) as (watch, held):
            await until(lambda: watch.counters.batches == 2)  # without any message coming by itself
            assert (held.match(), held.match(OTHER)) == (4, 10)
            assert watch.counters.gaps == 0


async def test_a_silent_publisher_is_asked_what_was_missed():
    async with KvPublisher() as publisher, watching(publisher, silent_s=0.2) as (watch, held):
        await publisher.publish(stored(PROMPT[:32]))
        await until(lambda: held.match() == 2)
        await publisher.publish(stored(PROMPT), lose=True)
        await until(lambda: held.match() == 10)
        assert watch.counters.gaps == 0


async def test_what_was_known_before_a_watch_is_forgotten():
    async with KvPublisher() as publisher:
        held, context = Held(), zmq_context()
        keys = token_blocks(PROMPT, "m")
        assert keys is not None
        held.index.insert(0, keys.hashes)
        config = InstanceConfig(name="a", url="http://127.0.0.1:1", kv_events=publisher.endpoint)
        watch = KvEventWatch(config, held, "m", context)
        watch.start()
        assert held.match() == 0
        await watch.stop()
        context.destroy(linger=0)


async def test_a_late_start_without_replay_learns_from_then_on():
    async with KvPublisher() as publisher:
        early = stored(PROMPT[:64])
        await publisher.publish(early)
        async with watching(publisher, replay=False) as (watch, held):
            await publisher.publish(stored(PROMPT[64:], parent=early["block_hashes"][-1]))
            await publisher.publish(stored(OTHER))
            await until(lambda: watch.counters.batches == 2)
            assert (held.match(), held.match(OTHER)) == (0, 10)
            assert (watch.counters.unkeyed, watch.counters.gaps) == (6, 0)


async def test_a_gap_is_repaired_in_order():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        chain = stored(PROMPT)
        await publisher.publish(chain)
        await until(lambda: watch.counters.batches == 1)
        await publisher.publish(removed(chain["block_hashes"][5:]), lose=True)
        await publisher.publish(stored(OTHER), lose=True)
        await publisher.publish(removed(stored(OTHER)["block_hashes"][8:]))
        await until(lambda: watch.counters.batches == 4)
        assert (held.match(), held.match(OTHER)) == (5, 8)
        assert (watch.counters.gaps, watch.counters.repaired) == (1, 1)
        assert publisher.asked == [0, 1]
        await publisher.publish(CLEARED)
        await until(lambda: watch.counters.batches == 5)
        assert watch.counters.restarts == 0


@pytest.mark.parametrize("kept", [None, 1])
async def test_a_gap_that_cannot_be_repaired_empties_what_is_known(kept):
    async with (
        KvPublisher(keep=kept or 1000) as publisher,
        watching(publisher, replay=kept is not None) as (watch, held),
    ):
        await publisher.publish(stored(PROMPT))
        await until(lambda: watch.counters.batches == 1)
        await publisher.publish(stored(OTHER[:64]), lose=True)
        await publisher.publish(stored(OTHER))
        await until(lambda: watch.counters.batches == 2)
        assert (held.match(), held.match(OTHER)) == (0, 10)
        assert (watch.counters.gaps, watch.counters.repaired) == (1, int(kept is not None))
        assert held.cleared_times == 0


async def test_a_new_engine_begins_with_nothing():
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        await publisher.publish(stored(PROMPT))
        await until(lambda: watch.counters.batches == 1)
        publisher.restart()
        await publisher.publish(stored(OTHER))
        await until(lambda: watch.counters.batches == 2)
        assert (held.match(), held.match(OTHER)) == (0, 10)
        assert (held.cleared_times, watch.counters.restarts) == (1, 1)


async def test_it_reconnects_and_asks_for_everything_again():
    async with KvPublisher() as publisher:
        ports = publisher.port, publisher.replay_port
        async with watching(publisher) as (watch, held):
            await publisher.publish(stored(PROMPT))
            await publisher.publish(stored(PROMPT[:32]))
            await until(lambda: watch.counters.batches == 2)
            await publisher.__aexit__()
            await until(lambda: held.match() == 0)
            async with KvPublisher(*ports) as another:
                await another.publish(stored(OTHER))  # before it is subscribed to
                await until(lambda: held.match(OTHER) == 10)
                assert held.match() == 0
                assert watch.counters.restarts == 1
                await another.subscribed()
                await another.publish(stored(PROMPT[:48]))
                await until(lambda: held.match() == 3)
        await publisher.__aenter__()


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        b"\x80",
        b"\x93\x00\x05\x00",
        b"\x93\x00\x91\x05\x00",
        msgspec.msgpack.encode([0.0, [{"type": "BlockStored", "group_idx": 0}], 0]),
        msgspec.msgpack.encode([0.0, [{"type": "BlockRemoved", "group_idx": 0}], 0]),
    ],
)
async def test_what_cannot_be_read_empties_what_is_known(payload):
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        await publisher.publish(stored(PROMPT))
        await publisher.publish_raw(payload)
        await publisher.publish(stored(OTHER))
        await until(lambda: watch.counters.batches == 3)
        assert watch.counters.malformed == 1
        assert (held.match(), held.match(OTHER)) == (0, 10)


@pytest.mark.parametrize(
    "broken",
    [
        {"token_ids": ["x"] * 160},
        {"token_ids": 7},
        {"block_hashes": None},
        {"block_size": None},
        {"block_hashes": [["x"]] * 10},
        {"block_size": "16"},
        {"extra_keys": 5},
        {"lora_name": 5},
    ],
)
async def test_odd_events_are_malformed_and_the_watch_lives_on(broken):
    async with KvPublisher() as publisher, watching(publisher) as (watch, held):
        await publisher.publish({**stored(PROMPT), **broken})
        await publisher.publish(stored(OTHER))
        await until(lambda: watch.counters.batches == 2)
        assert watch.counters.malformed == 1
        assert (held.match(), held.match(OTHER)) == (0, 10)


async def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq.asyncio", None)
    with pytest.raises(ConfigError, match="kv-events"):
        zmq_context()


@pytest.mark.parametrize(
    "endpoint", ["tcp://*:5557", "http://h:1", "tcp://h", "tcp://h:0", "h:5557"]
)
def test_endpoints_that_cannot_be_connected_to_are_refused(endpoint):
    with pytest.raises(ValueError, match="must be an endpoint"):
        InstanceConfig(name="a", url="http://h:1", kv_events=endpoint)


def test_a_replay_needs_events():
    with pytest.raises(ValueError, match="needs kv_events"):
        InstanceConfig(name="a", url="http://h:1", kv_events_replay="tcp://h:5558")
