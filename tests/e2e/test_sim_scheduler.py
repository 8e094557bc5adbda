# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The simulated engine against vLLM's own scheduler, driven as EngineCore drives it but without a model or a clock."""

from __future__ import annotations

import random
from collections import deque

import pytest

from tests.unit.test_sim_engine import PROFILE, Plan, drive
from vllm_goodput.emulation import step_work
from vllm_goodput.sim.spec import SimInstance

pytestmark = pytest.mark.vllm
TOKEN = 7
MAX_LEN = 4096


@pytest.fixture(scope="module")
def configs(model):
    """Builds a scheduler for a spec."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    init_none_hash(sha256)
    model_config = ModelConfig(
        model=model, dtype="float32", skip_tokenizer_init=True, max_model_len=MAX_LEN
    )

    def make(spec: SimInstance):
        config = VllmConfig(
            model_config=model_config,
            scheduler_config=SchedulerConfig(
                max_num_seqs=spec.max_num_seqs,
                max_num_batched_tokens=spec.max_num_batched_tokens,
                max_model_len=MAX_LEN,
                is_encoder_decoder=False,
            ),
            cache_config=CacheConfig(
                block_size=spec.block_size, enable_prefix_caching=spec.prefix_caching
            ),
            device_config=DeviceConfig("cpu"),
        )
        # The CPU platform turns it off; here there is no platform.
        config.scheduler_config.async_scheduling = spec.async_scheduling
        blocks = spec.kv_tokens // spec.block_size + 1  # vLLM keeps one for itself
        config.cache_config.num_gpu_blocks = blocks
        attention = FullAttentionSpec(
            spec.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        kind = AsyncScheduler if spec.async_scheduling else Scheduler
        return kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=spec.block_size,
        )

    return make


class RealEngine:
    """EngineCore's loop around a real scheduler; steps take the profile's time."""

    def __init__(self, scheduler, spec: SimInstance) -> None:
        self.scheduler = scheduler
        self.spec = spec
        self.events: list[tuple[float, int, bool, bool]] = []
        self._flight: deque = deque()
        self._end_s = 0.0
        self._depth = 2 if spec.async_scheduling else 1
        self._seen: set[str] = set()

    def run(self, requests) -> None:
        """`requests`: (time, vLLM request) in order of time."""
        waiting = deque(requests)
        now_s = 0.0
        while True:
            while waiting and waiting[0][0] <= now_s:
                self.scheduler.add_request(waiting.popleft()[1])
            if self.scheduler.has_requests():
                executed = self._schedule(now_s)
                if len(self._flight) < self._depth and (executed or self.scheduler.has_requests()):
                    continue
            if self._flight:
                now_s = max(now_s, self._land())
            elif waiting:
                now_s = waiting[0][0]
            else:
                return

    def _schedule(self, now_s: float) -> bool:
        output = self.scheduler.schedule()
        if output.total_num_scheduled_tokens == 0:
            self._flight.append((None, output, [], []))
            return False
        start_s = max(now_s, self._end_s)
        self._end_s = start_s + PROFILE.step_s(step_work(output)) * self.spec.scale
        ids = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        tokens = [[] if requests[i].is_prefill_chunk else [TOKEN] for i in ids]
        self._flight.append((self._end_s, output, ids, tokens))
        return True

    def _land(self) -> float:
        from vllm.v1.outputs import ModelRunnerOutput

        end_s, output, ids, tokens = self._flight.popleft()
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: k for k, request_id in enumerate(ids)},
            sampled_token_ids=tokens,
        )
        found = self.scheduler.update_from_output(output, result)
        for outputs in found.values():
            for one in outputs.outputs:
                first = bool(one.new_token_ids) and one.request_id not in self._seen
                self._seen |= {one.request_id} if first else set()
                if first or one.finish_reason is not None:
                    last = one.finish_reason is not None
                    self.events.append((end_s, int(one.request_id), first, last))
        return 0.0 if end_s is None else end_s


def real(configs, spec: SimInstance, plans: list[Plan]):
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(spec.block_size, sha256)
    requests = []
    for index, plan in enumerate(plans):
        seed = f"own {index}" if plan.session is None else f"session {plan.session}"
        rng = random.Random(seed)
        requests.append(
            (
                plan.at_s,
                Request(
                    str(index),
                    [rng.randrange(3, 250) for _ in range(plan.prompt_len)],
                    SamplingParams(max_tokens=plan.output_len, ignore_eos=True),
                    None,
                    block_hasher=hasher if spec.prefix_caching else None,
                ),
            )
        )
    engine = RealEngine(configs(spec), spec)
    engine.run(sorted(requests, key=lambda pair: pair[0]))
    return engine


def random_case(seed: int, tight: bool, caching: bool, asynchronous: bool):
    rng = random.Random(seed)
    spec = SimInstance(
        name="i",
        profile=PROFILE,
        scale=rng.choice([0.1, 0.37, 1.0]),
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.randint(8, 200),
        kv_tokens=rng.choice([224, 320, 480]) if tight else 100_000,
        block_size=16,
        prefix_caching=caching,
        async_scheduling=asynchronous,
    )
    spread = rng.choice([0.02, 0.3, 3.0])
    plans = [
        Plan(
            rng.uniform(0.0, spread),
            rng.randint(1, 150),
            rng.randint(1, 60),
            rng.choice([None, 0, 1]),
        )
        for _ in range(rng.randint(1, 12))
    ]
    return spec, plans


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("tight", "caching"), [(False, True), (True, False), (True, True)])
def test_every_token_comes_when_it_comes_with_vllms_scheduler(
    configs, tight, caching, asynchronous
):
    preemptions = 0
    for seed in range(40):
        spec, plans = random_case(seed, tight, caching, asynchronous)
        ours, _, seqs = drive(spec, plans)
        theirs = real(configs, spec, plans).events
        assert sorted(e[1:] for e in ours) == sorted(e[1:] for e in theirs), seed
        times = {(i, first, last): at_s for at_s, i, first, last in theirs}
        assert [e[0] for e in ours] == pytest.approx([times[e[1:]] for e in ours]), seed
        preemptions += sum(seq.preemptions for seq in seqs)
    assert (preemptions > 0) is tight
