# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the router asks of any length predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from vllm_goodput import _C

if TYPE_CHECKING:
    from vllm_goodput.router.types import RequestInfo


# Predicted distribution of one request's output length, tokens (`csrc/lengths.h`): `quantile(q)` and
# `remaining(generated, q)` are at least 1 and non-decreasing in q, `cdf(length)` is the probability of at most that
# length, and `ends_within(generated, more)` that of at most so many more tokens.
LengthDistribution = _C.Lengths


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
