# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Speed of one instance as a black box, from response timings alone.

Robust, regularised least squares with forgetting and non-negative coefficients on the model

    time = o + p·(prompt tokens to prefill) + d0·(decode steps) + d1·(decode steps x sequences in the batch) + e

so that d(n) = d0 + d1·n; e, which may be negative, is a fixed time of the decode part of an answer. A streamed response
gives two equations (to the first token; from the first to the last), a plain one their sum. Errors are relative. What
is far outside the usual counts little; a first token that came far too soon is taken for one whose prefix was cached;
several in a row to one side mean that the speed has changed. That q, p and d come from outside the instance is
GoodServe's (arXiv 2605.16867); the regression is ours. The arithmetic is C++ (`csrc/speed_estimator.*`).
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_goodput import _C


@dataclass(frozen=True)
class Sample:
    """One equation: `time_s` spent on these amounts of work."""

    time_s: float
    requests: float
    prefill_tokens: float
    steps: float
    step_sequences: float


class SpeedEstimator:
    """Estimates o, p, d0, d1 of one instance.

    Args:
        native: the native estimator to speak for, where it lives inside something else; by default a new one.
    """

    __slots__ = ("native",)

    def __init__(self, native: _C.SpeedEstimator | None = None) -> None:
        self.native = _C.SpeedEstimator() if native is None else native

    @property
    def known(self) -> bool:
        """Whether at least one response has been seen."""
        return self.native.known

    @property
    def samples(self) -> int:
        """Equations that the estimate rests on."""
        return self.native.samples

    def add(self, sample: Sample) -> None:
        """Learn from one equation; ones without work or time, or with a number that is not finite, are ignored."""
        self.native.add(
            sample.time_s,
            sample.requests,
            sample.prefill_tokens,
            sample.steps,
            sample.step_sequences,
        )

    def overhead_s(self) -> float:
        """o: fixed time per request, seconds."""
        return self.native.overhead_s()

    def prefill_token_s(self) -> float:
        """p: seconds per prompt token."""
        return self.native.prefill_token_s()

    def decode_step_s(self, sequences: float) -> float:
        """d(n): seconds per output token with n sequences in the batch."""
        return self.native.decode_step_s(sequences)

    def decode_offset_s(self) -> float:
        """Time that the decode part of an answer of two or more tokens takes beside its steps, seconds; may be < 0."""
        return self.native.decode_offset_s()
