# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Keeps a predictor's failures away from requests: the one it fails on is predicted by a running histogram instead."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vllm_goodput.predictor.base import LengthDistribution, LengthPredictor

if TYPE_CHECKING:
    from vllm_goodput.router.types import RequestInfo

log = logging.getLogger(__name__)

WARN_EVERY_S = 60.0


class Seldom:
    """Lets something happen at most once per period.

    Args:
        period_s: seconds.
    """

    def __init__(self, period_s: float = WARN_EVERY_S) -> None:
        self._period_s = period_s
        self._next_s = 0.0

    def now(self) -> bool:
        """Whether it may happen now; then not again for a period."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._period_s
        return True


class GuardedPredictor:
    """A LengthPredictor that does not fail as long as its fallback does not.

    Args:
        inner: the predictor.
        fallback: stands in; learns from every request, so as to be of use when it is needed.
        failed: told of each request that `inner` failed on.
    """

    def __init__(
        self, inner: LengthPredictor, fallback: LengthPredictor, failed: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._fallback = fallback
        self._failed = failed
        self._warn = Seldom()

    def predict(self, info: RequestInfo) -> LengthDistribution:
        """See LengthPredictor."""
        try:
            return self._inner.predict(info)
        except Exception as error:  # noqa: BLE001 (whatever it is, the request goes on)
            self.note(error)
            return self._fallback.predict(info)

    def predict_batch(self, infos: Sequence[RequestInfo]) -> Sequence[LengthDistribution]:
        """See LengthPredictor. If a batch fails, each request is tried by itself."""
        try:
            return self._inner.predict_batch(infos)
        except Exception:  # noqa: BLE001 (one of them, as a rule; `predict` finds and notes it)
            return [self.predict(info) for info in infos]

    def observe(
        self, info: RequestInfo, output_len: int, predicted: LengthDistribution | None = None
    ) -> None:
        """See LengthPredictor."""
        self._fallback.observe(info, output_len)
        try:
            self._inner.observe(info, output_len, predicted)
        except Exception as error:  # noqa: BLE001 (the router's books must not suffer)
            self.note(error)

    def note(self, error: Exception) -> None:
        """Count a failure, and say so in the log now and then."""
        self._failed()
        if self._warn.now():
            # The message of an error may quote what it failed on, and prompts are never logged.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "the length predictor failed on a request (%s in %s at line %s); a running histogram stands in",
                type(error).__name__,
                frame.filename,
                frame.lineno,
            )
