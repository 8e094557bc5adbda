# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The learned predictor: a trained mixture of experts, and the corrections that finished requests bring at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vllm_goodput import _C
from vllm_goodput.predictor.distribution import QuantileDistribution, with_ends
from vllm_goodput.predictor.features import Features, extract
from vllm_goodput.predictor.model import F32, MoEModel
from vllm_goodput.predictor.online import Corrections, Vector, median, session_shift
from vllm_goodput.predictor.sessions import Sessions
from vllm_goodput.predictor.view import RequestView
from vllm_goodput.slo import MAX_LABEL_LEN

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution
    from vllm_goodput.router.types import RequestInfo

# Without a declared task, corrections are kept for the gate's first choice if it has this weight of all claims.
CLEAR_TASK = 0.5


class Predicted(QuantileDistribution):
    """A prediction that remembers how it was made, for when the request finishes."""

    def __init__(
        self,
        levels: Vector,
        logs: Vector,
        cap: float,
        raw: Vector,
        final: Vector,
        key: tuple[str, str],
        model: MoEModel,
        features: Features | None,
    ) -> None:
        # Both ends of the distribution are in `levels` and `logs` already: for a batch, numpy finds them faster.
        _C.Lengths.__init__(self, levels, logs, cap)
        self.raw = raw
        self.final = final
        self.key = key
        self.model = model
        self.features = features


class MoEPredictor:
    """A LengthPredictor by a trained model.

    Args:
        model: the mixture of experts.
        use_max_tokens: never predict above a request's max_tokens.
        max_sessions: sessions whose lengths are remembered.
        keep_features: let predictions carry the features that they were made from, for a log.
    """

    def __init__(
        self,
        model: MoEModel,
        use_max_tokens: bool = True,
        max_sessions: int = 100_000,
        keep_features: bool = False,
    ) -> None:
        self._use_max_tokens = use_max_tokens
        self._keep_features = keep_features
        self._sessions = Sessions(max_sessions)
        self.swap(model)

    def swap(self, model: MoEModel) -> None:
        """Predict with another model from now on; corrections of the old one are dropped, sessions stay."""
        corrections = Corrections(model.levels)  # first what can fail
        self.model, self.corrections = model, corrections
        self._levels = np.array([0.0, *model.levels, 1.0])
        self._known_tasks = frozenset(model.gate.tasks)
        self._known_models = frozenset(model.models)

    def predict(self, info: RequestInfo) -> Predicted:
        """See LengthPredictor."""
        return self.predict_batch([info])[0]

    def predict_batch(self, infos: Sequence[RequestInfo]) -> list[Predicted]:
        """See LengthPredictor."""
        model = self.model
        views = [info.view or self._bare_view(info) for info in infos]
        sessions = [self._sessions.get(info.session) for info in infos]
        features = extract(list(zip(views, sessions, strict=True)))
        quantiles, weights = model.predict(
            features, [view.model for view in views], [info.task for info in infos]
        )
        raw = quantiles.astype(np.float64)
        keys = [
            (task[:MAX_LABEL_LEN], view.model[:MAX_LABEL_LEN])
            for task, view in zip(self._tasks(infos, weights), views, strict=True)
        ]
        unknown = [self._unknown(key) for key in keys]
        shifts = [
            session_shift(s.residual, s.count, count == 0) if s else 0.0
            for s, count in zip(sessions, unknown, strict=True)
        ]
        final = self.corrections.apply(raw, keys, unknown, shifts)
        whole = with_ends(final, model.levels)
        return [
            Predicted(
                self._levels,
                whole[i],
                info.output_cap(self._use_max_tokens),
                raw[i],
                final[i],
                keys[i],
                model,
                features.row(i) if self._keep_features else None,
            )
            for i, info in enumerate(infos)
        ]

    def _tasks(self, infos: Sequence[RequestInfo], weights: F32) -> list[str]:
        """The task that each request's corrections are kept under: as declared, else as the gate sees it."""
        tasks, declared = self.model.gate.tasks, self.model.gate.declared
        if not tasks:
            return [info.task or "" for info in infos]
        first = weights[:, :-1].argmax(axis=1)
        clear = weights[np.arange(len(first)), first] >= CLEAR_TASK * declared[first]
        return [
            info.task if info.task is not None else tasks[top] if sure else ""
            for info, top, sure in zip(infos, first.tolist(), clear.tolist(), strict=True)
        ]

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """See LengthPredictor."""
        if output_len < 1:
            return
        if not isinstance(predicted, Predicted) or predicted.model is not self.model:
            predicted = self.predict(info)
        log_len = math.log(output_len)
        censored = output_len >= info.output_cap(self._use_max_tokens)
        state = self.corrections.of(predicted.key, self._unknown(predicted.key) == 0)
        # A session's own residual is what its key does not explain.
        residual = log_len - (median(predicted.raw, self.model.levels) + state.shift)
        if censored:
            residual = max(0.0, residual)
        state.learn(predicted.raw, predicted.final, log_len, censored)
        self._sessions.add(info.session, info.prompt_len, output_len, residual)

    def _unknown(self, key: tuple[str, str]) -> int:
        """How many of task and model the model was not trained on."""
        return (key[0] not in self._known_tasks) + (key[1] not in self._known_models)

    def _bare_view(self, info: RequestInfo) -> RequestView:
        max_tokens = info.max_tokens if self._use_max_tokens else None
        return RequestView(
            model=info.model or "", prompt_len=info.prompt_len, max_tokens=max_tokens
        )
