# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Predictors that learn nothing: one length for every request, or the length that the request itself states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_goodput.predictor.distribution import QuantileDistribution

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution
    from vllm_goodput.router.types import RequestInfo

# Nearly all of the probability lies within 1 % of the length.
LEVELS = (0.01, 0.99)
HALF_WIDTH = 0.01


def narrow(length: float, cap: float = math.inf) -> QuantileDistribution:
    """A distribution with little but `length` in it, tokens."""
    log_len = math.log(length)
    return QuantileDistribution(LEVELS, (log_len - HALF_WIDTH, log_len + HALF_WIDTH), cap)


class ConstantLength:
    """A LengthPredictor that always says the same.

    Args:
        length: tokens.
        use_max_tokens: never predict above a request's max_tokens.
    """

    def __init__(self, length: int, use_max_tokens: bool = True) -> None:
        self._length = length
        self._use_max_tokens = use_max_tokens

    def predict(self, info: RequestInfo) -> QuantileDistribution:
        """See LengthPredictor."""
        return narrow(self._length, info.output_cap(self._use_max_tokens))

    def predict_batch(self, infos: Sequence[RequestInfo]) -> list[QuantileDistribution]:
        """See LengthPredictor."""
        return [self.predict(info) for info in infos]

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """See LengthPredictor. Nothing is learned."""


class MaxTokensLength(ConstantLength):
    """A LengthPredictor that takes a request's max_tokens as its length; an oracle where that is the true one.

    Args:
        length: of requests without a max_tokens, tokens.
    """

    def predict(self, info: RequestInfo) -> QuantileDistribution:
        """See LengthPredictor."""
        return narrow(info.max_tokens or self._length, info.output_cap(use_max_tokens=True))
