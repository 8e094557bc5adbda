# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What goes into the router and what comes out. Times in seconds on the caller's monotonic clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_goodput.slo import SLO

if TYPE_CHECKING:
    from vllm_goodput.predictor.base import LengthDistribution
    from vllm_goodput.predictor.view import RequestView
    from vllm_goodput.router.prefix import Blocks


@dataclass(frozen=True)
class RequestInfo:
    """What is known of a request when it arrives.

    Args:
        request_id: unique while the request is open.
        prompt_len: prompt tokens, exact or estimated.
        arrival_s: when it arrived; SLOs count from here.
        slo: objectives; metrics it leaves open are not asked for.
        task, session: the caller's labels.
        max_tokens: the request's own limit on output tokens.
        model: model name asked for; None for any.
        streaming: whether first-token times will be reported.
        excluded: instances that must not be chosen (already tried).
        context_left: tokens that the model's context leaves for the output; None where not known.
        view: what a length predictor may know of it beyond the above.
        blocks: keys of its prompt for the prefix index; None where the prompt is not known.
    """

    request_id: str
    prompt_len: int
    arrival_s: float
    slo: SLO = SLO()  # noqa: RUF009 (frozen)
    task: str | None = None
    session: str | None = None
    max_tokens: int | None = None
    model: str | None = None
    streaming: bool = True
    excluded: frozenset[str] = field(default=frozenset())
    context_left: int | None = None
    view: RequestView | None = field(default=None, repr=False)
    blocks: Blocks | None = field(default=None, repr=False, compare=False)

    def output_cap(self, use_max_tokens: bool) -> float:
        """No output is longer, tokens; inf where nothing tells. `use_max_tokens`: the request's own limit counts."""
        cap: float = self.context_left or math.inf
        if use_max_tokens and self.max_tokens and self.max_tokens < cap:
            cap = self.max_tokens
        return cap

    @property
    def deadline_s(self) -> float:
        """When the whole answer is due; inf without an e2el SLO."""
        return self.arrival_s + self.slo.e2el_s

    @property
    def ttft_deadline_s(self) -> float:
        """When the first token is due; inf without a ttft SLO."""
        return self.arrival_s + self.slo.ttft_s


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted latency of a request on one instance: T = q + p·(L_in − H) + d(n)·L̂_out, seconds from now.

    Args:
        queue_s: q, wait before its own prefill starts.
        prefill_s: p·(L_in − H).
        decode_s: d(n)·L̂_out.
        tpot_s: d(n), time per output token.
        output_len: L̂_out, tokens.
        known: False when the instance has never been measured; the times are then guesses.
        hit_tokens: H, prompt tokens expected in the instance's prefix cache.
    """

    queue_s: float
    prefill_s: float
    decode_s: float
    tpot_s: float
    output_len: float
    known: bool = True
    hit_tokens: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Predicted time to first token."""
        return self.queue_s + self.prefill_s

    @property
    def e2el_s(self) -> float:
        """Predicted end-to-end latency from now."""
        return self.ttft_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to `instance`; `lengths` is the output length predicted for it."""

    instance: str
    prediction: Prediction
    lengths: LengthDistribution = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing fits now but something may later: ask again at `retry_at_s`."""

    retry_at_s: float


@dataclass(frozen=True, slots=True)
class Reject:
    """Do not serve the request; `reason` as in errors.RejectedError."""

    reason: str
    message: str
    retry_after_s: float = 1.0


Decision = Dispatch | Hold | Reject


@dataclass(frozen=True, slots=True)
class Migration:
    """Move an open request from `source` to the dispatch's instance, with what it has generated.

    Args:
        request_id: of the request.
        source: where it is.
        dispatch: where it goes, and what is predicted from there on.
        generated: output tokens that it is believed to have.
        gain: what the move is expected to add to the chance of meeting its SLO; 0 where it only balances load.
    """

    request_id: str
    source: str
    dispatch: Dispatch
    generated: int
    gain: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """One instance in an Explanation.

    Args:
        instance: its name.
        prediction: of the request there.
        in_flight, limit: requests booked and concurrent sequences at most.
        chance: probability that every objective is met there.
        harm: booked requests expected to miss their objectives because of this one.
        margin_s: time to spare at the predicted length; inf without a deadline.
    """

    instance: str
    prediction: Prediction
    in_flight: int
    limit: int
    chance: float
    harm: float
    margin_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with everything that was weighed for it."""

    policy: str
    decision: Decision
    alternatives: tuple[Alternative, ...]
