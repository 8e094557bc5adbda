# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The learned predictor: a trained mixture of experts, and the corrections that finished requests bring at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_goodput import _C
from vllm_goodput.predictor.model import MoEModel
from vllm_goodput.predictor.online import Corrections
from vllm_goodput.predictor.sessions import Sessions
from vllm_goodput.predictor.view import RequestView
from vllm_goodput.slo import MAX_LABEL_LEN

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution
    from vllm_goodput.router.types import RequestInfo

# A LengthDistribution that remembers how it was made, for when the request finishes (`csrc/learned_lengths.h`).
Predicted = _C.PredictedLengths


class MoEPredictor:
    """A LengthPredictor by a trained model.

    A whole batch is predicted within one call to C++ (`csrc/learned_lengths.*`): there are 100 microseconds per request
    for everything where 10,000 come in a second.

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
        self._native = _C.LearnedLengths(
            model.native,
            corrections,
            self._sessions,
            max_label_len=MAX_LABEL_LEN,
            keep_features=self._keep_features,
        )
        self.model, self.corrections = model, corrections

    def predict(self, info: RequestInfo) -> Predicted:
        """See LengthPredictor."""
        return self.predict_batch([info])[0]

    def predict_batch(self, infos: Sequence[RequestInfo]) -> list[Predicted]:
        """See LengthPredictor."""
        limited = self._use_max_tokens
        return self._native.predict(
            [
                (
                    info.view or self._bare_view(info),
                    info.session,
                    info.task,
                    info.output_cap(limited),
                )
                for info in infos
            ]
        )

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """See LengthPredictor."""
        if output_len < 1:
            return
        native = self._native
        if not isinstance(predicted, Predicted) or not native.made(predicted):
            predicted = self.predict(info)
        cap = info.output_cap(self._use_max_tokens)
        native.observe(predicted, info.session, info.prompt_len, output_len, cap)

    def _bare_view(self, info: RequestInfo) -> RequestView:
        max_tokens = info.max_tokens if self._use_max_tokens else None
        return RequestView(
            model=info.model or "", prompt_len=info.prompt_len, max_tokens=max_tokens
        )
