# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What finished requests correct at once: location, histogram and calibration per task and model.

The model's quantiles are shifted by the recent mean residual of their key (task, model) and session, as far as there
are enough of them to go by, then averaged with the quantiles of the key's running histogram. The weights follow the
gradient of the loss (exponentiated gradient; Kivinen and Warmuth, 1997), so that a kind of request on which the model
is wrong soon gets what a histogram would say. Last, each level is moved until the stated fraction of recent lengths
lies below it (adaptive conformal inference; Gibbs and Candès, 2021), which holds however lengths drift.

A kind of request that the model was not trained on begins with a wider distribution. Of an answer that was cut off only
a lower bound is known: what was expected stands in for it if it lies above, and weights and levels learn nothing.

`csrc/corrections.*` computes it and has the constants: within a microsecond per request, of which NumPy would need a
hundred, on arrays as short as these.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from vllm_goodput import _C

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Corrections(_C.Corrections):
    """Corrections by (task, model), the least recently observed forgotten first.

    Args:
        levels: quantile levels, rising inside (0, 1).
        max_keys: how many are remembered.

    Raises:
        ValueError: the levels are none.
    """

    def __init__(self, levels: Vector, max_keys: int = 2000) -> None:
        normal = [NormalDist().inv_cdf(level) for level in levels.tolist()]
        super().__init__(levels, normal, max_keys)

    def apply(
        self,
        raw: Matrix,
        keys: Sequence[tuple[str, str]],
        unknown: Sequence[int],
        session_shifts: Sequence[float],
    ) -> Matrix:
        """Corrected log quantiles.

        Args:
            raw: [n, levels], the model's log quantiles of n requests.
            keys: of the requests.
            unknown: how many of the key's task and model are unknown to the model: 0, 1 or 2.
            session_shifts: by their sessions' mean residuals, natural log of tokens.

        Returns:
            [n, levels], non-decreasing along the levels.
        """
        return super().apply(raw, keys, unknown, session_shifts)

    def learn(
        self,
        key: tuple[str, str],
        known: bool,
        raw: Vector,
        final: Vector,
        log_len: float,
        censored: bool,
    ) -> float:
        """A request finished.

        Args:
            key: of the request.
            known: whether the model was trained on requests of this kind.
            raw: [levels], the model's log quantiles for it.
            final: [levels], what was predicted after all corrections.
            log_len: natural logarithm of its output length.
            censored: whether it was cut off at a limit, so that it would have been at least so long.

        Returns:
            What the key's correction did not explain: the session's own residual.
        """
        return super().learn(key, known, raw, final, log_len, censored)
