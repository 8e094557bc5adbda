# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The one object that the gateway, the simulator and other front ends drive.

Pure: no I/O, no clock of its own. A caller asks `route()`; after a Dispatch it reports `on_dispatched`, then
`on_first_token` and `on_progress` where the answer streams, and exactly one of `on_finished` or `on_failed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_goodput.config import RouterConfig
from vllm_goodput.predictor import LengthDistribution, LengthPredictor, TaskHistogram
from vllm_goodput.router.instance import InstanceState
from vllm_goodput.router.latency import length_of, predict
from vllm_goodput.router.policies import Candidate, Query, make_policy
from vllm_goodput.router.types import Decision, Dispatch, Prediction, Reject, RequestInfo


@dataclass(frozen=True)
class Open:
    """Where an open request was dispatched and what was predicted."""

    instance: str
    info: RequestInfo
    lengths: LengthDistribution


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
        self._open: dict[str, Open] = {}

    def add_instance(
        self,
        name: str,
        max_num_seqs: int | None = None,
        models: Iterable[str] | None = None,
        healthy: bool = True,
    ) -> InstanceState:
        """Add an instance, or update its limits if it is known already."""
        state = self.instances.setdefault(name, InstanceState(name))
        state.max_num_seqs = max_num_seqs
        state.models = None if models is None else frozenset(models)
        state.healthy = healthy
        return state

    def remove_instance(self, name: str) -> None:
        """Forget an instance; its open requests may still be reported."""
        self.instances.pop(name, None)

    def set_healthy(self, name: str, healthy: bool) -> None:
        """Let an instance take requests, or not."""
        self.instances[name].healthy = healthy

    def route(
        self, info: RequestInfo, now_s: float, lengths: LengthDistribution | None = None
    ) -> Decision:
        """Where to send a request; changes nothing until `on_dispatched`.

        Args:
            info: the request.
            now_s: the time.
            lengths: its predicted output length; the predictor is asked if it is None.
        """
        usable = [i for i in self.instances.values() if _usable(i, info)]
        if not usable:
            return Reject("no-endpoints", "no healthy instance serves this request", 2.0)
        if lengths is None:
            lengths = self.predictor.predict(info)
        output_len = length_of(lengths, self.config.length_quantile)
        candidates = [
            Candidate(i, self._predict(i, info, output_len, now_s), lengths) for i in usable
        ]
        return self.policy.decide(Query(info, lengths, now_s, candidates))

    def on_dispatched(self, info: RequestInfo, decision: Dispatch, now_s: float) -> None:
        """The request was sent to the decision's instance."""
        if info.request_id in self._open:
            raise ValueError(f"request {info.request_id!r} is open already")
        lengths = decision.lengths
        self.instances[decision.instance].book(info, lengths, decision.prediction, now_s)
        self._open[info.request_id] = Open(decision.instance, info, lengths)

    def on_first_token(self, request_id: str, now_s: float) -> None:
        """The first token of a streamed answer arrived."""
        state = self._state(request_id)
        if state is not None:
            state.first_token(request_id, now_s)

    def on_progress(self, request_id: str, tokens: int, now_s: float) -> None:
        """`tokens` have arrived in all."""
        state = self._state(request_id)
        if state is not None:
            state.bookings[request_id].tokens = tokens

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
        state = self._state(request_id)
        done = self._open.pop(request_id)
        self.predictor.observe(done.info, output_len, done.lengths)
        if state is not None:
            booking = state.release(request_id, now_s)
            if timed:
                state.learn(booking, output_len, now_s)

    def on_failed(self, request_id: str, now_s: float) -> None:
        """The request ended some other way: error, abort, disconnect; its timings teach nothing."""
        state = self._state(request_id)
        del self._open[request_id]
        if state is not None:
            state.release(request_id, now_s)

    def _predict(
        self, instance: InstanceState, info: RequestInfo, output_len: float, now_s: float
    ) -> Prediction:
        return predict(instance, info, output_len, now_s, self.config.length_quantile)

    def _state(self, request_id: str) -> InstanceState | None:
        """The instance of an open request; None if it was removed or re-added meanwhile."""
        state = self.instances.get(self._open[request_id].instance)
        return state if state is not None and request_id in state.bookings else None


def _usable(instance: InstanceState, info: RequestInfo) -> bool:
    return (
        instance.healthy
        and instance.name not in info.excluded
        and (info.model is None or instance.models is None or info.model in instance.models)
    )
