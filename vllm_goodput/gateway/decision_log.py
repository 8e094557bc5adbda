# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A log of decisions, one line of JSON each, on the logger `vllm_goodput.decisions`.

A request has a line for each instance that it was sent to, and one for its rejection; how long it was held first is in
that line. No text of a prompt is in it, and of a session only a hash with a salt that is new at every start. Lines are
written in the event loop: a log handler that blocks holds up the gateway.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from vllm_goodput.config import GatewayConfig
from vllm_goodput.errors import RejectedError
from vllm_goodput.predictor import LengthDistribution
from vllm_goodput.router import Dispatch, RequestInfo
from vllm_goodput.slo import MAX_LABEL_LEN

log = logging.getLogger("vllm_goodput.decisions")

# Of the predicted output length.
QUANTILES = (("output_q50", 0.5), ("output_q90", 0.9))


@dataclass(slots=True)
class Asked:
    """What is known of a request so far.

    Args:
        request_id: the caller's or the gateway's.
        info: None while it is being read.
        lengths: its predicted output length, once predicted.
        held_since_s: when it was first held.
        candidates: instances weighed by the latest decision.
    """

    request_id: str | None = None
    info: RequestInfo | None = None
    lengths: LengthDistribution | None = None
    held_since_s: float | None = None
    candidates: int = 0


class DecisionLog:
    """Writes the lines.

    Args:
        dispatches: whether dispatches are logged too, not only rejections.
        salt: of hashes of sessions.
        time_s: Unix time, seconds.
    """

    def __init__(
        self, dispatches: bool, salt: bytes, time_s: Callable[[], float] = time.time
    ) -> None:
        self._dispatches = dispatches
        self._salt = salt
        self._time_s = time_s
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO)  # whatever the others' level: these lines were asked for

    def dispatched(self, asked: Asked, dispatch: Dispatch, now_s: float) -> None:
        """A request was sent to an instance."""
        if not self._dispatches or asked.info is None:
            return
        p = dispatch.prediction
        margin_s = asked.info.deadline_s - now_s - p.e2el_s
        self._write(
            asked,
            now_s,
            decision="dispatch",
            instance=dispatch.instance,
            queue_ms=_ms(p.queue_s),
            prefill_ms=_ms(p.prefill_s),
            decode_ms=_ms(p.decode_s),
            tpot_ms=_ms(p.tpot_s),
            hit_tokens=p.hit_tokens,
            margin_ms=_ms(margin_s),
            measured=p.known,
        )

    def rejected(self, asked: Asked, error: RejectedError, now_s: float) -> None:
        """A request was rejected."""
        self._write(asked, now_s, decision="reject", reason=error.reason, message=str(error))

    def _write(self, asked: Asked, now_s: float, **decision: Any) -> None:
        held_s = 0.0 if asked.held_since_s is None else now_s - asked.held_since_s
        line = {
            "time_s": round(self._time_s(), 3),
            "request_id": asked.request_id,
            **(self._request(asked.info) if asked.info else {}),
            **(_lengths(asked.lengths) if asked.lengths else {}),
            "held_ms": _ms(held_s),
            "candidates": asked.candidates,
            **decision,
        }
        log.info("%s", orjson.dumps(line).decode())

    def _request(self, info: RequestInfo) -> dict[str, Any]:
        return {
            "task": info.task,
            "session": None if info.session is None else self._hash(info.session),
            "model": None if info.model is None else info.model[:MAX_LABEL_LEN],
            "prompt_len": info.prompt_len,
            "slo": info.slo.as_dict(),
            "tried": len(info.excluded),
        }

    def _hash(self, name: str) -> str:
        data = name.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=8, key=self._salt).hexdigest()


def make_decision_log(config: GatewayConfig) -> DecisionLog | None:
    """The configured log; None where nothing is logged."""
    if config.log_decisions == "off":
        return None
    return DecisionLog(config.log_decisions == "all", secrets.token_bytes(16))


def _lengths(lengths: LengthDistribution) -> dict[str, float]:
    return {name: round(lengths.quantile(level), 1) for name, level in QUANTILES}


def _ms(seconds: float) -> float | None:
    """Milliseconds, to the microsecond; None for no bound."""
    return round(seconds * 1e3, 3) if math.isfinite(seconds) else None
