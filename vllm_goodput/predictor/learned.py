# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The learned predictor: a trained mixture of experts, and the corrections that finished requests bring at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vllm_goodput.predictor.distribution import QuantileDistribution
from vllm_goodput.predictor.features import Features, extract
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.predictor.online import Corrections, Vector, median, session_shift
from vllm_goodput.predictor.sessions import Sessions
from vllm_goodput.predictor.view import RequestView

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution
    from vllm_goodput.router.types import RequestInfo

log = logging.getLogger(__name__)

# Without a declared task, corrections are kept for the gate's first choice if it has this weight of all claims.
CLEAR_TASK = 0.5
MAX_LABEL = 128


class Predicted(QuantileDistribution):
    """A prediction that remembers how it was made, for when the request finishes."""

    __slots__ = ("features", "final", "key", "model", "raw")

    def __init__(
        self,
        levels: Sequence[float],
        final: Vector,
        cap: float,
        raw: Vector,
        key: tuple[str, str],
        model: MoEModel,
        features: Features | None = None,
    ) -> None:
        super().__init__(levels, final.tolist(), cap)
        self.final = final
        self.raw = raw
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
        self.model = model
        self.corrections = Corrections(model.levels)
        self._levels: tuple[float, ...] = tuple(model.levels.tolist())
        self._known_tasks = frozenset(model.gate.tasks)
        self._known_models = frozenset(model.models)

    def predict(self, info: RequestInfo) -> Predicted:
        """See LengthPredictor."""
        return self.predict_batch([info])[0]

    def predict_batch(self, infos: Sequence[RequestInfo]) -> list[Predicted]:
        """See LengthPredictor."""
        model = self.model
        views = [info.view or _bare_view(info) for info in infos]
        sessions = [self._sessions.get(info.session) for info in infos]
        features = extract(list(zip(views, sessions, strict=True)))
        quantiles, weights = model.predict(
            features, [view.model for view in views], [info.task for info in infos]
        )
        raws = quantiles.astype(np.float64)
        first = weights[:, :-1].argmax(axis=1) if model.gate.tasks else None
        made = []
        for row, (info, view, session) in enumerate(zip(infos, views, sessions, strict=True)):
            raw = raws[row]
            task = info.task
            if task is None and first is not None:
                top = first[row]
                clear = weights[row, top] >= CLEAR_TASK * model.gate.declared[top]
                task = model.gate.tasks[top] if clear else ""
            key = ((task or "")[:MAX_LABEL], view.model[:MAX_LABEL])
            state = self.corrections.get(key)
            shift = session_shift(session.residual, session.count) if session else 0.0
            final = state.correct(raw, shift) if state else raw + shift
            kept = features.row(row) if self._keep_features else None
            made.append(Predicted(self._levels, final, self._cap(info), raw, key, model, kept))
        return made

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """See LengthPredictor."""
        if output_len < 1:
            return
        if not isinstance(predicted, Predicted) or predicted.model is not self.model:
            predicted = self.predict(info)
        log_len = math.log(output_len)
        censored = output_len >= self._cap(info)
        task, model = predicted.key
        state = self.corrections.of(
            predicted.key, task in self._known_tasks and model in self._known_models
        )
        # A session's own residual is what its key does not explain.
        residual = log_len - (median(predicted.raw, self.model.levels) + state.shift)
        state.learn(predicted.raw, predicted.final, log_len, censored)
        self._sessions.add(info.session, info.prompt_len, output_len, residual)

    def _cap(self, info: RequestInfo) -> float:
        limits = [info.context_left]
        if self._use_max_tokens:
            limits.append(info.max_tokens)
        return float(min((limit for limit in limits if limit), default=math.inf))


def _bare_view(info: RequestInfo) -> RequestView:
    return RequestView(
        model=info.model or "", prompt_len=info.prompt_len, max_tokens=info.max_tokens
    )
