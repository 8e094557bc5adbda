# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Requests that arrive together are predicted together, and none waits for a timer or for another's fate."""

from __future__ import annotations

import asyncio

import pytest

from vllm_goodput.errors import RequestError
from vllm_goodput.gateway.lengths import BatchedLengths
from vllm_goodput.predictor.constant import narrow
from vllm_goodput.router import RequestInfo


class Recorder:
    """Predicts each request's prompt length; remembers the batches."""

    def __init__(self, fails=False):
        self.batches = []
        self.fails = fails

    def predict_batch(self, infos):
        self.batches.append([info.request_id for info in infos])
        if self.fails:
            raise ValueError("broken")
        return [narrow(info.prompt_len) for info in infos]


def info(number):
    return RequestInfo(str(number), 100 + number, 0.0)


async def test_one_alone_is_predicted_within_two_turns():
    recorder = Recorder()
    task = asyncio.create_task(BatchedLengths(recorder).predict(info(1)))
    for _ in range(3):  # to start it, to predict, to wake it
        await asyncio.sleep(0)
    assert task.done()
    assert task.result().quantile(0.5) == pytest.approx(101)
    assert recorder.batches == [["1"]]


async def test_those_of_one_turn_share_a_call_and_get_their_own_lengths():
    recorder = Recorder()
    batched = BatchedLengths(recorder)
    lengths = await asyncio.gather(*(batched.predict(info(n)) for n in range(20)))
    assert len(recorder.batches) == 1
    assert [round(one.quantile(0.5)) for one in lengths] == [100 + n for n in range(20)]
    await batched.predict(info(5))
    assert len(recorder.batches) == 2


async def test_batches_are_bounded_and_in_order():
    recorder = Recorder()
    batched = BatchedLengths(recorder, max_batch=8)
    await asyncio.gather(*(batched.predict(info(n)) for n in range(20)))
    assert [len(batch) for batch in recorder.batches] == [8, 8, 4]
    assert [int(i) for batch in recorder.batches for i in batch] == list(range(20))


async def test_arrivals_while_some_still_wait_are_served_too():
    recorder = Recorder()
    batched = BatchedLengths(recorder, max_batch=2)
    first = [asyncio.create_task(batched.predict(info(n))) for n in range(5)]
    while not recorder.batches:
        await asyncio.sleep(0)
    late = asyncio.create_task(batched.predict(info(9)))
    await asyncio.gather(*first, late)
    assert sorted(i for batch in recorder.batches for i in batch) == list("012349")


async def test_those_who_left_are_not_predicted():
    recorder = Recorder()
    batched = BatchedLengths(recorder)
    tasks = [asyncio.create_task(batched.predict(info(n))) for n in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert recorder.batches == [["0", "2"]]


async def test_when_all_have_left_nothing_is_predicted():
    recorder = Recorder()
    batched = BatchedLengths(recorder)
    task = asyncio.create_task(batched.predict(info(1)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert recorder.batches == []
    await batched.predict(info(2))
    assert recorder.batches == [["2"]]


async def test_a_failure_reaches_everyone_who_waits_and_nobody_else():
    recorder = Recorder(fails=True)
    batched = BatchedLengths(recorder)
    results = await asyncio.gather(
        *(batched.predict(info(n)) for n in range(3)), return_exceptions=True
    )
    assert [(type(r), r.status) for r in results] == [(RequestError, 500)] * 3
    assert len({id(r) for r in results}) == 3
    assert "broken" not in str(results[0])
    recorder.fails = False
    assert (await batched.predict(info(1))).quantile(0.5) == pytest.approx(101)
