# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""`POST /goodput/v1/explain`: what would be decided of a request now, and why. Nothing is sent, learned or counted.

Limit: what is decided a moment later may differ, as every request that is placed meanwhile changes the loads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from vllm_goodput.errors import BadRequestError, RejectedError
from vllm_goodput.gateway.intake import Intake, parse, read_body
from vllm_goodput.gateway.lengths import Lengths
from vllm_goodput.gateway.proxy import Proxy
from vllm_goodput.instance.auth import SECRET_HEADER, require_pool
from vllm_goodput.instance.slo_middleware import GENERATING_PATHS
from vllm_goodput.predictor import LengthDistribution
from vllm_goodput.router import Decision, Dispatch, Hold, Reject, RequestInfo, Router
from vllm_goodput.router.types import Alternative

EXPLAIN_PATH = "/goodput/v1/explain"
CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
# Of the predicted output length.
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


class Explainer:
    """Answers the questions.

    Args:
        router: asked what it would decide.
        proxy: knows what it refuses by itself.
        lengths: predicts output lengths.
    """

    def __init__(self, router: Router, proxy: Proxy, lengths: Lengths) -> None:
        self._router = router
        self._proxy = proxy
        self._lengths = lengths

    async def handle(self, request: web.Request) -> web.Response:
        """Serve one question; needs the pool's secret."""
        require_pool(request.headers.get(SECRET_HEADER), EXPLAIN_PATH)
        raw, body = await read_body(request)
        chat = _is_chat(request.query, body)
        try:
            intake = parse(request.headers, raw, body, chat, self._proxy.known, time.monotonic())
            self._proxy.admit(intake.info, self._proxy.open)
        except RejectedError as error:
            rejected = Reject(error.reason, str(error), error.retry_after_s)
            return _answer(self._told(rejected, time.monotonic()))
        return _answer(await self._explain(intake))

    async def _explain(self, intake: Intake) -> dict[str, Any]:
        info = intake.info
        lengths = await self._lengths.predict(info)
        now_s = time.monotonic()
        found = self._router.explain(info, now_s, lengths)
        decision = found.decision
        if isinstance(decision, Hold):
            decision = self._proxy.held(decision)
        return {
            **self._told(decision, now_s),
            "request": _request(info, intake.chat),
            "output_len": self._output_len(lengths),
            "instances": [_instance(one) for one in found.alternatives],
        }

    def _told(self, decision: Decision, now_s: float) -> dict[str, Any]:
        return {"policy": self._router.policy.name, "decision": _decision(decision, now_s)}

    def _output_len(self, lengths: LengthDistribution) -> dict[str, float]:
        levels = sorted({*LEVELS, self._router.config.length_quantile})
        return {f"q{level * 100:g}": lengths.quantile(level) for level in levels}


def _is_chat(query: Mapping[str, str], body: Mapping[str, Any]) -> bool:
    path = query.get("path")
    if path is None:
        return "messages" in body
    if path not in GENERATING_PATHS:
        raise BadRequestError("path", f"{CHAT_PATH} or {COMPLETIONS_PATH}", path)
    return path == CHAT_PATH


def _decision(decision: Decision, now_s: float) -> dict[str, Any]:
    if isinstance(decision, Dispatch):
        return {"kind": "dispatch", "instance": decision.instance}
    if isinstance(decision, Hold):
        return {"kind": "hold", "retry_ms": (decision.retry_at_s - now_s) * 1e3}
    return {"kind": "reject", "reason": decision.reason, "message": decision.message}


def _request(info: RequestInfo, chat: bool) -> dict[str, Any]:
    return {
        "path": CHAT_PATH if chat else COMPLETIONS_PATH,
        "model": info.model,
        "task": info.task,
        "prompt_len": info.prompt_len,
        "max_tokens": info.max_tokens,
        "slo": info.slo.as_dict(),
        "prefix_keys": 0 if info.blocks is None else len(info.blocks.hashes),
    }


def _instance(one: Alternative) -> dict[str, Any]:
    p = one.prediction
    return {
        "name": one.instance,
        "measured": p.known,
        "queue_ms": p.queue_s * 1e3,
        "prefill_ms": p.prefill_s * 1e3,
        "hit_tokens": p.hit_tokens,
        "tpot_ms": p.tpot_s * 1e3,
        "output_len": p.output_len,
        "decode_ms": p.decode_s * 1e3,
        "ttft_ms": p.ttft_s * 1e3,
        "e2el_ms": p.e2el_s * 1e3,
        "chance": one.chance,
        "harm": one.harm,
        "margin_ms": one.margin_s * 1e3,
        "in_flight": one.in_flight,
        "limit": one.limit,
    }


def _answer(told: Mapping[str, Any]) -> web.Response:
    # orjson writes what is not finite, such as the margin without a deadline, as null.
    return web.Response(body=orjson.dumps(told), content_type="application/json")
