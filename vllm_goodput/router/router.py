# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The one object that the gateway, the simulator and other front ends drive.

Pure: no I/O, no clock of its own. A caller asks `route()`; after a Dispatch it reports `on_dispatched`, then
`on_first_token` and `on_progress` where the answer streams, and exactly one of `on_finished` or `on_failed`. Where
it can move running requests it asks `rectify()` now and then, and reports `on_migrated` for every move that it made.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vllm_goodput import _C
from vllm_goodput.config import RouterConfig
from vllm_goodput.predictor import LengthDistribution, LengthPredictor, TaskHistogram
from vllm_goodput.router.caches import PrefixCaches
from vllm_goodput.router.instance import InstanceState
from vllm_goodput.router.policies import make_policy
from vllm_goodput.router.query import Query, demand_of
from vllm_goodput.router.types import (
    Decision,
    Dispatch,
    Explanation,
    Migration,
    Reject,
    RequestInfo,
)

Slots = npt.NDArray[np.int32]
Hits = npt.NDArray[np.float64]

# Model names asked for that are remembered with the instances that serve them.
MAX_MODELS = 1000
# Of a larger pool a part is looked at first, so that a decision costs the same in a pool of any size; all of it only if
# none of the part will do. Besides, so many of those that hold some of the prompt.
MAX_CANDIDATES = 128
MAX_HOLDING = 16
# The handle of a request whose instance is gone; never open.
NOWHERE = -1


@dataclass(slots=True)
class Open:
    """Where an open request was dispatched and what was predicted."""

    instance: str
    info: RequestInfo
    lengths: LengthDistribution
    handle: int


class Router:
    """Chooses instances and learns from what happens.

    Args:
        config: policy and parameters.
        predictor: output-length predictor; the running histogram by default.
    """

    def __init__(self, config: RouterConfig, predictor: LengthPredictor | None = None) -> None:
        self.config = config
        self.policy = make_policy(config)
        self.predictor: LengthPredictor = predictor or TaskHistogram(
            config.initial_output_len, use_max_tokens=config.use_max_tokens
        )
        self.instances: dict[str, InstanceState] = {}
        self.pool = _C.Pool()
        self.caches = PrefixCaches()
        self._open: dict[str, Open] = {}
        self._ids: dict[int, str] = {}  # request by handle
        self._names: list[str] = []  # instance by slot
        self._turn = 0
        self._usable: dict[str | None, Slots] = {}  # by model asked for; empty: to be found again

    def add_instance(
        self,
        name: str,
        max_num_seqs: int | None = None,
        models: Iterable[str] | None = None,
        healthy: bool = True,
        kv_tokens: int | None = None,
        block_size: int | None = None,
        kv_events: bool = False,
    ) -> InstanceState:
        """Add an instance, or update what is known of it.

        Args:
            name: unique name.
            max_num_seqs: the engine's limit on concurrent sequences; None when unknown.
            models: names it serves; None when unknown (then it may serve any).
            healthy: whether it takes requests.
            kv_tokens: size of its KV cache, tokens; None when unknown.
            block_size: tokens per block of it; None when unknown.
            kv_events: whether what its prefix cache holds is reported by `on_kv_*`.
        """
        state = self.instances.get(name)
        if state is None:
            state = self.instances[name] = InstanceState(name, self.pool)
            self._names += [""] * (self.pool.slots - len(self._names))
            self._names[state.slot] = name
        state.max_num_seqs = max_num_seqs
        state.models = None if models is None else frozenset(models)
        state.healthy = healthy
        self.caches.add_instance(state.slot, kv_tokens, block_size, kv_events)
        self._usable.clear()
        return state

    def remove_instance(self, name: str) -> None:
        """Forget an instance; its open requests may still be reported."""
        state = self.instances.pop(name, None)
        if state is not None:
            self.pool.remove_instance(state.slot)
            self.caches.remove_instance(state.slot)
            self._usable.clear()

    def set_healthy(self, name: str, healthy: bool) -> None:
        """Let an instance take requests, or not."""
        self.instances[name].healthy = healthy
        self._usable.clear()

    def route(
        self, info: RequestInfo, now_s: float, lengths: LengthDistribution | None = None
    ) -> Decision:
        """Where to send a request; changes nothing until `on_dispatched`.

        Args:
            info: the request.
            now_s: the time.
            lengths: its predicted output length; the predictor is asked if it is None.
        """
        slots = self._slots(info)
        if not len(slots):
            return Reject("no-endpoints", "no healthy instance serves this request", 2.0)
        if lengths is None:
            lengths = self.predictor.predict(info)
        hits = self.caches.hits(info.blocks, info.prompt_len)
        if self.policy.some_will_do and len(slots) > MAX_CANDIDATES:
            some = self._some(slots, hits)
            decision = self.policy.decide(self._query(info, now_s, some, lengths, hits))
            if isinstance(decision, Dispatch):
                return decision
        return self.policy.decide(self._query(info, now_s, slots, lengths, hits))

    def explain(
        self, info: RequestInfo, now_s: float, lengths: LengthDistribution | None = None
    ) -> Explanation:
        """What `route` would decide now, and what it would weigh; changes nothing at all."""
        slots = self._slots(info)
        if not len(slots):
            return Explanation(self.policy.name, self.route(info, now_s, lengths), ())
        if lengths is None:
            lengths = self.predictor.predict(info)
        hits = self.caches.hits(info.blocks, info.prompt_len)
        query = self._query(info, now_s, slots, lengths, hits)
        decision = copy.deepcopy(self.policy).decide(query)
        return Explanation(self.policy.name, decision, query.alternatives(self.config.margin))

    def on_dispatched(self, info: RequestInfo, decision: Dispatch, now_s: float) -> None:
        """The request was sent to the decision's instance."""
        if info.request_id in self._open:
            raise ValueError(f"request {info.request_id!r} is open already")
        self._book(info, decision, now_s, demand_of(info))

    def on_first_token(self, request_id: str, now_s: float) -> None:
        """The first token of a streamed answer arrived."""
        handle = self._open[request_id].handle
        if self.pool.open(handle):
            self.pool.first_token(handle, now_s)

    def on_progress(self, request_id: str, tokens: int, now_s: float) -> None:
        """`tokens` have arrived in all."""
        handle = self._open[request_id].handle
        if self.pool.open(handle):
            self.pool.progress(handle, tokens)

    def on_progress_many(
        self, request_ids: Iterable[str], tokens: Sequence[int], now_s: float
    ) -> None:
        """The same for many requests at once; those not open are passed over."""
        opened = self._open
        handles = [
            found.handle if (found := opened.get(request_id)) else -1 for request_id in request_ids
        ]
        self.pool.progress_all(handles, tokens)

    def on_finished(
        self, request_id: str, output_len: int, now_s: float, timed: bool = True
    ) -> None:
        """The answer is complete, with `output_len` tokens.

        Args:
            request_id: of the dispatched request.
            output_len: tokens.
            now_s: when the last one came.
            timed: whether its timing tells the instance's speed; not if the client held it up.
        """
        done = self._forget(request_id)
        self.predictor.observe(done.info, output_len, done.lengths)
        if self.pool.open(done.handle):
            self.pool.release(done.handle, output_len if timed else 0, now_s)

    def on_failed(self, request_id: str, now_s: float) -> None:
        """The request ended some other way: error, abort, disconnect; its timings teach nothing."""
        done = self._forget(request_id)
        if self.pool.open(done.handle):
            self.pool.release(done.handle, 0, now_s)

    def on_kv_stored(
        self, name: str, hashes: npt.NDArray[np.uint64], parent: int | None = None
    ) -> None:
        """An instance's prefix cache holds these token blocks, behind the block `parent` (None: at the beginning)."""
        if (state := self.instances.get(name)) is not None:
            self.caches.stored(state.slot, parent, hashes)

    def on_kv_removed(self, name: str, hashes: npt.NDArray[np.uint64]) -> None:
        """An instance's prefix cache has dropped these token blocks."""
        if (state := self.instances.get(name)) is not None:
            self.caches.removed(state.slot, hashes)

    def on_kv_cleared(self, name: str, text: bool = True) -> None:
        """Nothing is known to be in an instance's prefix cache; not `text`: what text keys tell of it still holds."""
        if (state := self.instances.get(name)) is not None:
            self.caches.clear(state.slot, text)

    def rectify(self, now_s: float) -> list[Migration]:
        """Which open requests should move, and where to; changes nothing until `on_migrated`."""
        return self.policy.rectify(self, now_s)

    def on_migrated(self, migration: Migration, now_s: float) -> None:
        """The request has left its source and was sent on, with `migration.generated` tokens (the true number)."""
        moved = self._forget(migration.request_id)
        moves = 1
        if self.pool.open(moved.handle):
            moves += self.pool.booking(moved.handle).moves
            self.pool.release(moved.handle, 0, now_s)
        handle = self._book(
            moved.info, migration.dispatch, now_s, demand_of(moved.info, migration.generated)
        )
        if handle != NOWHERE:
            self.pool.moved(handle, moves, now_s)

    def query_move(self, request_id: str, generated: int, now_s: float) -> Query | None:
        """An open request as if it arrived now with what it has generated; None if no other instance can take it."""
        moving = self._open[request_id]
        info = replace(moving.info, excluded=moving.info.excluded | {moving.instance})
        slots = self._slots(info)
        if not len(slots):
            return None
        hits = self.caches.hits(info.blocks, info.prompt_len)
        return self._query(info, now_s, slots, moving.lengths, hits, generated)

    def open_on(self, name: str) -> list[tuple[str, int]]:
        """Open requests of an instance with their handles, oldest first."""
        return [
            (self._ids[handle], handle) for handle in self.pool.handles(self.instances[name].slot)
        ]

    def _book(self, info: RequestInfo, decision: Dispatch, now_s: float, demand: _C.Demand) -> int:
        prediction, lengths = decision.prediction, decision.lengths
        state = self.instances.get(decision.instance)
        if state is None:  # removed since the decision; its end may still be reported
            self._open[info.request_id] = Open(decision.instance, info, lengths, NOWHERE)
            return NOWHERE
        handle = self.pool.book(
            state.slot,
            demand,
            prediction.hit_tokens,
            prediction.ttft_s,
            prediction.tpot_s,
            lengths,
            now_s,
        )
        self._open[info.request_id] = Open(decision.instance, info, lengths, handle)
        self._ids[handle] = info.request_id
        self.caches.insert(state.slot, info.blocks)
        return handle

    def _forget(self, request_id: str) -> Open:
        done = self._open.pop(request_id)
        self._ids.pop(done.handle, None)
        return done

    def _query(
        self,
        info: RequestInfo,
        now_s: float,
        slots: Slots,
        lengths: LengthDistribution,
        hits: Hits | None,
        generated: int = 0,
    ) -> Query:
        quantile = self.config.length_quantile
        if generated:
            output_len = generated + lengths.remaining(generated, quantile)
        else:
            output_len = lengths.quantile(quantile)
        demand = demand_of(info, generated)
        self.pool.evaluate(slots, hits, demand, output_len, now_s)
        return Query(info, lengths, now_s, self.pool, demand, output_len, self._names)

    def _some(self, slots: Slots, hits: Hits | None) -> Slots:
        """A part of a large pool: another one at every call, and the instances that hold most of the prompt."""
        self._turn = (self._turn + MAX_CANDIDATES) % len(slots)
        some = np.take(slots, np.arange(self._turn, self._turn + MAX_CANDIDATES), mode="wrap")
        if hits is None:
            return some
        holding = slots[hits[slots] > 0.0]
        if len(holding) > MAX_HOLDING:
            holding = holding[np.argpartition(-hits[holding], MAX_HOLDING)[:MAX_HOLDING]]
        return np.concatenate([holding, some]) if len(holding) else some

    def _slots(self, info: RequestInfo) -> Slots:
        """Instances that may take a request, as slots."""
        slots = self._usable.get(info.model)
        if slots is None:
            slots = self._usable[info.model] = self._find(info.model)
        if info.excluded:
            names = self._names
            slots = np.array([s for s in slots if names[s] not in info.excluded], np.int32)
        return slots

    def _find(self, model: str | None) -> Slots:
        if len(self._usable) >= MAX_MODELS:
            self._usable.clear()
        usable = [
            state.slot
            for state in self.instances.values()
            if state.healthy and (model is None or state.models is None or model in state.models)
        ]
        return np.array(usable, np.int32)
