# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One instance as the router sees it: what is booked on it, what it has done, how fast it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vllm_goodput.predictor.base import LengthDistribution
from vllm_goodput.router.estimator import Sample, SpeedEstimator
from vllm_goodput.router.types import Prediction, RequestInfo

# Concurrency assumed where an instance's limit is unknown.
DEFAULT_MAX_NUM_SEQS = 256
# Time constant of the arrival rate of prompt tokens, seconds.
RATE_WINDOW_S = 20.0


@dataclass
class Booking:
    """A request dispatched to an instance and not finished."""

    info: RequestInfo
    lengths: LengthDistribution
    prediction: Prediction
    dispatched_s: float
    queued_prefill: int  # prompt tokens before its first token: those ahead and its own
    saturated: bool  # all sequences were taken when it was dispatched
    prompt_tokens_mark: float  # the instance's prompt token count at dispatch, itself included
    first_token_s: float | None = None
    first_mark: _Mark | None = None
    tokens: int = 0
    _whole: dict[float, float] = field(default_factory=dict)

    def prefilling(self, now_s: float) -> bool:
        """Whether its first token is still to come (guessed where nothing is streamed)."""
        if self.info.streaming:
            return self.first_token_s is None
        return now_s < self.dispatched_s + self.prediction.ttft_s

    def remaining(self, now_s: float, quantile: float) -> float:
        """Tokens still to generate, at a quantile."""
        generated = self.generated(now_s)
        if generated >= 1:
            return self.lengths.remaining(generated, quantile)
        if quantile not in self._whole:  # many wait in a long queue, and none of them changes
            self._whole[quantile] = self.lengths.remaining(0, quantile)
        return self._whole[quantile]

    def generated(self, now_s: float) -> float:
        """Tokens so far (guessed where nothing is streamed)."""
        if self.info.streaming:
            return float(self.tokens)
        elapsed_s = now_s - self.dispatched_s - self.prediction.ttft_s
        return max(0.0, elapsed_s / self.prediction.tpot_s)


@dataclass(frozen=True)
class _Mark:
    """Cumulative counters of an instance at a moment; differences of two give what happened between."""

    at_s: float
    sequence_seconds: float
    prefilled: float


@dataclass
class InstanceState:
    """Bookings, speed and health of one instance.

    Args:
        name: unique name.
        max_num_seqs: the engine's limit on concurrent sequences; None when unknown.
        models: names it serves; None when unknown (then it may serve any).
    """

    name: str
    max_num_seqs: int | None = None
    models: frozenset[str] | None = None
    healthy: bool = True
    speed: SpeedEstimator = field(default_factory=SpeedEstimator)
    bookings: dict[str, Booking] = field(default_factory=dict)
    prompt_tokens: float = 0.0
    _sequence_seconds: float = 0.0
    _sequences_since_s: float = 0.0
    _prompt_rate: float = 0.0
    _prompt_rate_at_s: float = 0.0

    @property
    def limit(self) -> int:
        """Concurrent sequences at most."""
        return self.max_num_seqs or DEFAULT_MAX_NUM_SEQS

    @property
    def running(self) -> int:
        """Sequences that the engine is believed to run."""
        return min(len(self.bookings), self.limit)

    @property
    def occupancy(self) -> float:
        """Running / max_num_seqs."""
        return len(self.bookings) / self.limit

    def prompt_rate(self, now_s: float) -> float:
        """Recent arrival rate of prompt tokens, tokens per second."""
        age_s = max(0.0, now_s - self._prompt_rate_at_s)
        return self._prompt_rate * math.exp2(-age_s / RATE_WINDOW_S)

    def queued_prefill(self, now_s: float) -> int:
        """Prompt tokens of booked requests that have no token yet."""
        return sum(b.info.prompt_len for b in self.bookings.values() if b.prefilling(now_s))

    def book(
        self, info: RequestInfo, lengths: LengthDistribution, prediction: Prediction, now_s: float
    ) -> None:
        """A request was dispatched here."""
        ahead = self.queued_prefill(now_s)
        saturated = len(self.bookings) >= self.limit
        self._advance(now_s)
        self.prompt_tokens += info.prompt_len
        self._prompt_rate = self.prompt_rate(now_s) + info.prompt_len * 0.693 / RATE_WINDOW_S
        self._prompt_rate_at_s = now_s
        self.bookings[info.request_id] = Booking(
            info, lengths, prediction, now_s, ahead + info.prompt_len, saturated, self.prompt_tokens
        )

    def first_token(self, request_id: str, now_s: float) -> None:
        """The first token arrived."""
        booking = self.bookings[request_id]
        self._advance(now_s)
        booking.first_token_s = now_s
        booking.first_mark = _Mark(now_s, self._sequence_seconds, self._prefilled(now_s))
        if not booking.saturated:
            waited_s = now_s - booking.dispatched_s
            self.speed.add(Sample(waited_s, 1.0, booking.queued_prefill, 0.0, 0.0))

    def release(self, request_id: str, now_s: float) -> Booking:
        """The request left, for whatever reason."""
        self._advance(now_s)
        return self.bookings.pop(request_id)

    def learn(self, booking: Booking, output_len: int, now_s: float) -> None:
        """A released request had finished by itself with `output_len` tokens."""
        if booking.first_mark is not None and output_len > 1:
            self.speed.add(self._decode_sample(booking.first_mark, output_len - 1, now_s))
        elif not booking.info.streaming and not booking.saturated:
            self.speed.add(self._whole_sample(booking, output_len, now_s))

    def _decode_sample(self, start: _Mark, steps: int, now_s: float) -> Sample:
        time_s = max(1e-9, now_s - start.at_s)
        sequences = (self._sequence_seconds - start.sequence_seconds) / time_s
        others_prefill = max(0.0, self._prefilled(now_s) - start.prefilled)
        return Sample(time_s, 0.0, others_prefill, steps, steps * max(1.0, sequences))

    def _whole_sample(self, booking: Booking, output_len: int, now_s: float) -> Sample:
        time_s = max(1e-9, now_s - booking.dispatched_s)
        prefill = booking.queued_prefill + self.prompt_tokens - booking.prompt_tokens_mark
        sequences = min(self.limit, len(self.bookings) + 1)
        steps = max(0, output_len - 1)
        return Sample(time_s, 1.0, prefill, steps, steps * sequences)

    def _prefilled(self, now_s: float) -> float:
        """Prompt tokens whose prefill is done, since the beginning."""
        return self.prompt_tokens - self.queued_prefill(now_s)

    def _advance(self, now_s: float) -> None:
        """Bring the integral of running sequences over time up to now; called before every change."""
        elapsed_s = max(0.0, now_s - self._sequences_since_s)
        self._sequence_seconds += self.running * elapsed_s
        self._sequences_since_s = now_s
