# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the router asks of any length predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vllm_goodput.router.types import RequestInfo


class LengthDistribution(Protocol):
    """Predicted distribution of one request's output length, tokens."""

    def quantile(self, q: float) -> float:
        """The q-quantile of the output length; non-decreasing in q, at least 1."""
        ...

    def cdf(self, length: float) -> float:
        """Probability that the output is at most `length` tokens; non-decreasing, in [0, 1]."""
        ...

    def remaining(self, generated: float, q: float) -> float:
        """The q-quantile of the length still to come, given `generated` tokens so far; at least 1."""
        ...


class LengthPredictor(Protocol):
    """Predicts on arrival and learns from every finished request."""

    def predict(self, info: RequestInfo) -> LengthDistribution:
        """Distribution for a request, from what is known on its arrival."""
        ...

    def predict_batch(self, infos: Sequence[RequestInfo]) -> Sequence[LengthDistribution]:
        """The same for several requests at once, which may cost less."""
        ...

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """A request finished by itself.

        Args:
            info: as it was given to `predict`.
            output_len: tokens.
            predicted: what was predicted for it, if it is still known.
        """
        ...
