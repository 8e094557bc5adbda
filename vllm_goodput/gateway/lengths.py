# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Output lengths at the gateway: requests that arrive together are predicted together; model and log live here too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_goodput.config import RouterConfig
from vllm_goodput.errors import RequestError
from vllm_goodput.gateway.metrics import GatewayMetrics
from vllm_goodput.gateway.model_watch import ModelWatch
from vllm_goodput.predictor import LengthDistribution, LengthPredictor
from vllm_goodput.predictor.factory import make_histogram, make_predictor
from vllm_goodput.predictor.guard import GuardedPredictor
from vllm_goodput.predictor.learned import MoEPredictor
from vllm_goodput.predictor.log import LoggingPredictor, TrainingLog
from vllm_goodput.predictor.view import RequestView, view_of
from vllm_goodput.router import RequestInfo

log = logging.getLogger(__name__)

MAX_BATCH = 64


class BatchedLengths:
    """Predicts what arrives within one turn of the event loop in one call; who comes alone does not wait.

    Args:
        predictor: does the work.
        max_batch: requests per call; more take the next turn.
    """

    def __init__(self, predictor: LengthPredictor, max_batch: int = MAX_BATCH) -> None:
        self._predictor = predictor
        self._max_batch = max_batch
        self._waiting: list[tuple[RequestInfo, asyncio.Future[LengthDistribution]]] = []

    async def predict(self, info: RequestInfo) -> LengthDistribution:
        """Predicted length of a request."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        future: asyncio.Future[LengthDistribution] = loop.create_future()
        self._waiting.append((info, future))
        return await future

    def _flush(self) -> None:
        # Those who have left meanwhile are done: cancelled.
        waiting = [(info, future) for info, future in self._waiting if not future.done()]
        batch, self._waiting = waiting[: self._max_batch], waiting[self._max_batch :]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        if not batch:
            return
        try:
            lengths = self._predictor.predict_batch([info for info, _ in batch])
        except Exception as error:  # noqa: BLE001 (it belongs to those who wait)
            log.error("predicting output lengths failed: %s", type(error).__name__)
            for _, future in batch:
                future.set_exception(
                    RequestError("internal error at the gateway", status=500, code="internal_error")
                )
            return
        for (_, future), one in zip(batch, lengths, strict=True):
            future.set_result(one)


class Lengths:
    """The configured predictor with all that belongs to it.

    Args:
        config: which predictor.
        metrics: told of failures, swaps and the log's losses.

    Raises:
        DataError: the model cannot be loaded, or the log not be written.
    """

    def __init__(self, config: RouterConfig, metrics: GatewayMetrics) -> None:
        settings = config.predictor
        self._watch: ModelWatch | None = None
        if settings.kind == "learned" and settings.model is not None:
            self._watch = ModelWatch(Path(settings.model), settings.reload_s, metrics)
        inner = make_predictor(config)
        self._learned = inner if isinstance(inner, MoEPredictor) else None
        self._use_max_tokens = config.use_max_tokens
        self._log: TrainingLog | None = None
        if self._learned is not None and settings.log is not None:
            self._log = TrainingLog(
                Path(settings.log.path), settings.log.max_mb, metrics.log_dropped.inc
            )
            inner = LoggingPredictor(self._learned, self._log)
        metrics.predictor_loaded(settings.kind, settings.model)
        self.predictor = GuardedPredictor(
            inner, make_histogram(config), metrics.predictor_failures.inc
        )
        self._batched = BatchedLengths(self.predictor)

    def view(
        self,
        body: Mapping[str, Any],
        chat: bool,
        prompt_len: int,
        max_tokens: int | None,
        tokens_per_char: float,
    ) -> RequestView | None:
        """See view.view_of. None where the predictor has no use for it, or the body is too odd."""
        if self._learned is None:
            return None
        if not self._use_max_tokens:
            max_tokens = None  # no feature either
        try:
            return view_of(body, chat, prompt_len, max_tokens, tokens_per_char)
        except Exception as error:  # noqa: BLE001 (such as recursion into something nested deep)
            self.predictor.note(error)
            return None

    async def predict(self, info: RequestInfo) -> LengthDistribution:
        """Predicted length of a request."""
        return await self._batched.predict(info)

    def start(self) -> None:
        """Begin to watch the model file."""
        if self._watch is not None and self._learned is not None:
            self._watch.start(self._learned.swap)

    def reload(self) -> None:
        """Load the model file again now."""
        if self._watch is not None:
            self._watch.reload()

    async def stop(self) -> None:
        """End watching; write what waits for the log."""
        if self._watch is not None:
            await self._watch.stop()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)
