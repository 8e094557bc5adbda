# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One request to place, with what it would meet on every instance that could take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vllm_goodput import _C
from vllm_goodput.router.types import Alternative, Dispatch, Prediction, RequestInfo

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution


def demand_of(info: RequestInfo, generated: float = 0.0) -> _C.Demand:
    """What the native pool needs to know of a request.

    Args:
        info: the request.
        generated: output tokens it has already, which a new instance has to compute again.
    """
    slo = info.slo
    return _C.Demand(
        info.prompt_len + generated,
        generated,
        info.deadline_s,
        info.ttft_deadline_s if not generated else np.inf,
        slo.tpot_s,
        info.streaming,
    )


class Query:
    """What a policy is given. The arrays of `candidates` are those of the pool's latest evaluation.

    Args:
        info: the request.
        lengths: predicted distribution of its output length.
        now_s: the time.
        pool: holds the candidates, evaluated for this request.
        demand: the request as the pool sees it.
        output_len: length that must fit, tokens.
        names: instance names by slot.
    """

    __slots__ = (
        "candidates",
        "demand",
        "info",
        "lengths",
        "names",
        "now_s",
        "output_len",
        "pool",
    )

    def __init__(
        self,
        info: RequestInfo,
        lengths: LengthDistribution,
        now_s: float,
        pool: _C.Pool,
        demand: _C.Demand,
        output_len: float,
        names: Sequence[str],
    ) -> None:
        self.info = info
        self.lengths = lengths
        self.now_s = now_s
        self.pool = pool
        self.demand = demand
        self.output_len = output_len
        self.names = names
        self.candidates = pool.candidates

    def prediction(self, index: int) -> Prediction:
        """What is predicted on a candidate."""
        queue_s, prefill_s, decode_s, tpot_s, hit_tokens, known = self.candidates.row(index)
        return Prediction(queue_s, prefill_s, decode_s, tpot_s, self.output_len, known, hit_tokens)

    def name(self, index: int) -> str:
        """The candidate's name."""
        return self.names[self.candidates.slot_of(index)]

    def dispatch(self, index: int) -> Dispatch:
        """The decision to send the request to a candidate."""
        return Dispatch(self.name(index), self.prediction(index), self.lengths)

    def chances(self, margin: float) -> npt.NDArray[np.float64]:
        """Probability per candidate that every objective is met, predicted times stretched by the margin."""
        self.pool.chances(self.demand, self.lengths, 1.0 + margin, self.now_s)
        return self.candidates.chance

    def feasible(self, margin: float) -> npt.NDArray[np.bool_]:
        """Which candidates' predicted latencies, with the margin added, meet every objective."""
        c, info = self.candidates, self.info
        stretch = 1.0 + margin
        ttft_s = (c.queue_s + c.prefill_s) * stretch
        return np.asarray(
            (self.now_s + ttft_s + c.decode_s * stretch <= info.deadline_s)
            & (self.now_s + ttft_s <= info.ttft_deadline_s)
            & (c.tpot_s <= info.slo.tpot_s)
        )

    def harm(self, index: int) -> float:
        """Booked requests expected to miss their objectives because of this one, on a candidate."""
        *_, hit_tokens, _ = self.candidates.row(index)
        prefill = self.info.prompt_len - hit_tokens
        return self.pool.harm(self.candidates.slot_of(index), prefill, self.now_s)

    def alternatives(self, margin: float) -> tuple[Alternative, ...]:
        """Everything known of every candidate, likeliest first."""
        c = self.candidates
        chance = self.chances(margin)
        left_s = self.info.deadline_s - self.now_s
        in_flight, limit = c.in_flight, c.limit
        order = np.argsort(-chance, kind="stable").tolist()
        return tuple(
            Alternative(
                self.name(k),
                (prediction := self.prediction(k)),
                int(in_flight[k]),
                int(limit[k]),
                float(chance[k]),
                self.harm(k),
                left_s - prediction.e2el_s,
            )
            for k in order
        )

    def why_not(self) -> str:
        """Why the request fits nowhere, in figures, for a rejection."""
        c = self.candidates
        best = int(np.argmin(c.queue_s + c.prefill_s + c.decode_s))
        p = self.prediction(best)
        left_s = self.info.deadline_s - self.now_s
        return (
            f"the soonest, {self.name(best)}, would take about {p.e2el_s:.2f} s (queue {p.queue_s:.2f}, prefill "
            f"{p.prefill_s:.2f}, decode {p.decode_s:.2f} for {p.output_len:.0f} tokens); {max(0.0, left_s):.2f} s "
            "are left"
        )
