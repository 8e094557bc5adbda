# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A generation request from arrival to answer: place it, relay it, try another instance if that is still possible."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from aiohttp import web

from vllm_goodput.config import GatewayConfig
from vllm_goodput.errors import RejectedError, RequestError
from vllm_goodput.gateway.decision_log import Asked, make_decision_log
from vllm_goodput.gateway.intake import Intake, Known, take
from vllm_goodput.gateway.lengths import Lengths
from vllm_goodput.gateway.membership import Membership
from vllm_goodput.gateway.metrics import GatewayMetrics
from vllm_goodput.gateway.prompt_len import PromptLengths
from vllm_goodput.gateway.relay import AttemptFailed, ClientGoneError, Outcome, Relay
from vllm_goodput.router import Decision, Dispatch, Hold, Reject, RequestInfo, Router

log = logging.getLogger(__name__)

# Quantile levels of predicted lengths that are held against what came.
LENGTH_LEVELS = (0.5, 0.9)

MAX_ATTEMPTS = 3
# Held requests ask the router again at most once per this time and held request: 2,000 times a second in all.
REASK_S = 0.0005


class Proxy:
    """Serves generation requests.

    Args:
        config: limits and default SLO.
        router: decides; told of everything that happens.
        membership: instances by name.
        metrics: counters.
        lengths: predicts output lengths.
    """

    def __init__(
        self,
        config: GatewayConfig,
        router: Router,
        membership: Membership,
        metrics: GatewayMetrics,
        lengths: Lengths,
    ) -> None:
        self._config = config
        self._router = router
        self._membership = membership
        self._metrics = metrics
        self._lengths = lengths
        self._prompt_lens = PromptLengths()
        self._decisions = make_decision_log(config)
        self.known = Known(
            config.slo.slo,
            self._prompt_lens,
            membership.context_len,
            lengths,
            membership.names.of if config.router.prefix.enabled else None,
        )
        self.open = 0
        self._held = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one request; every end is counted once."""
        arrival_s = time.monotonic()
        asked = Asked()
        outcome_name = "aborted"
        self.open += 1
        self._metrics.open.set(self.open)
        try:
            intake = await take(request, self.known, arrival_s)
            asked.request_id, asked.info = intake.request_id, intake.info
            response, outcome = await self._serve(request, intake, asked)
            outcome_name = self._judge(intake, outcome)
            return response
        except RequestError as error:
            outcome_name = _error_outcome(error.status)
            if isinstance(error, RejectedError):
                outcome_name = "rejected"
                if error.reason == "infeasible":
                    self._membership.request_rejected()
                self._metrics.rejected.labels(error.reason).inc()
                if self._decisions is not None:
                    self._decisions.rejected(asked, error, time.monotonic())
            response = error_response(error)
            request_id = request.headers.get("x-request-id", "")
            if request_id.isprintable():
                response.headers["x-request-id"] = request_id
            return response
        except web.HTTPException as error:  # aiohttp's own, such as 413
            outcome_name = _error_outcome(error.status)
            raise
        except ClientGoneError:
            return web.Response(status=499)  # nobody is left to read it
        finally:
            self.open -= 1
            self._metrics.open.set(self.open)
            task = self._metrics.slo.task_label(asked.info.task if asked.info else None)
            self._metrics.slo.requests.labels(task, outcome_name).inc()

    async def _serve(
        self, request: web.Request, intake: Intake, asked: Asked
    ) -> tuple[web.StreamResponse, Outcome]:
        info = intake.info
        self.admit(info, self.open - 1)
        relay = Relay(request, intake, self._router)
        asked.lengths = await self._lengths.predict(info)
        disconnected = False
        answer: web.Response | None = None
        for _ in range(MAX_ATTEMPTS):
            try:
                dispatch = await self._place(info, asked)
            except RejectedError as rejection:
                if answer is None or rejection.reason != "no-endpoints":
                    raise
                break  # every instance was tried
            member = self._membership.members[dispatch.instance]
            try:
                response, outcome = await relay.run(member.upstream, dispatch)
            except AttemptFailed as failure:
                log.warning("instance %s: %s", dispatch.instance, failure)
                self._metrics.retries.labels(dispatch.instance).inc()
                if failure.unreachable:
                    self._membership.connection_failed(dispatch.instance)
                answer = failure.answer or answer
                if failure.disconnected and not disconnected:
                    disconnected = True  # perhaps an idle connection that just timed out: it gets a second chance
                    continue
                info = asked.info = replace(info, excluded=info.excluded | {dispatch.instance})
                continue
            self._observe(intake, dispatch, outcome)
            return response, outcome
        if answer is not None:
            return answer, Outcome(status=answer.status)
        raise RequestError(
            f"{MAX_ATTEMPTS} instances failed to answer", status=502, code="upstream_failed"
        )

    async def _place(self, info: RequestInfo, asked: Asked) -> Dispatch:
        """Ask the router until it dispatches or rejects."""
        held = False
        try:
            while True:
                now_s = time.monotonic()
                decision = self._router.route(info, now_s, asked.lengths)
                if self._decisions is not None:
                    asked.candidates = self._candidates(decision)
                if isinstance(decision, Dispatch):
                    self._router.on_dispatched(info, decision, now_s)
                    if self._decisions is not None:
                        self._decisions.dispatched(asked, decision, now_s)
                    return decision
                if isinstance(decision, Hold) and not held:
                    decision = self.held(decision)
                if isinstance(decision, Reject):
                    raise RejectedError(decision.reason, decision.message, decision.retry_after_s)
                if not held:
                    held = True
                    self._hold(1)
                    asked.held_since_s = asked.held_since_s or now_s
                await self._sleep(decision, now_s)
        finally:
            if held:
                self._hold(-1)

    def held(self, decision: Hold) -> Hold | Reject:
        """What becomes of the decision to hold one more request."""
        if self._held >= self._config.router.max_held:
            return Reject("saturated", "too many requests wait for capacity")
        return decision

    def _hold(self, more: int) -> None:
        self._held += more
        self._metrics.held.set(self._held)

    def _candidates(self, decision: Decision) -> int:
        """How many instances were weighed for the decision just made."""
        none = isinstance(decision, Reject) and decision.reason == "no-endpoints"
        return 0 if none else len(self._router.pool.candidates)

    async def _sleep(self, hold: Hold, now_s: float) -> None:
        await asyncio.sleep(max(hold.retry_at_s - now_s, self._held * REASK_S))

    def admit(self, info: RequestInfo, others: int) -> None:
        """Refuse a request that is not to be placed at all.

        Args:
            info: the request.
            others: open besides it.

        Raises:
            RejectedError: too many are open.
            RequestError: no instance serves its model, healthy or not.
        """
        if others >= self._config.max_open_requests:
            raise RejectedError("saturated", "too many requests are open at the gateway")
        model = info.model
        states = self._router.instances.values()
        if model is None or any(s.models is None or model in s.models for s in states):
            return
        raise RequestError(
            f"no instance serves the model {model!r}",
            status=404,
            code="model_not_found",
            param="model",
        )

    def _observe(self, intake: Intake, dispatch: Dispatch, outcome: Outcome) -> None:
        if not outcome.complete:
            return
        if outcome.prompt_len is not None:
            self._prompt_lens.learn(intake.body, intake.chat, outcome.prompt_len)
        self._metrics.prefix.finished(
            dispatch.instance,
            outcome.prompt_len or intake.info.prompt_len,
            None if intake.info.blocks is None else dispatch.prediction.hit_tokens,
            outcome.cached_len,
        )
        arrival_s = intake.info.arrival_s
        e2el_s = outcome.end_s - arrival_s
        self._metrics.e2el.labels(dispatch.instance).observe(e2el_s)
        self._metrics.ttft.labels(dispatch.instance).observe(
            (outcome.first_s or outcome.end_s) - arrival_s
        )
        self._judge_lengths(intake, dispatch, outcome.output_len)
        if dispatch.prediction.known and e2el_s > 0:
            ratio = dispatch.prediction.e2el_s / e2el_s
            self._metrics.error.labels(dispatch.instance).observe(ratio)

    def _judge_lengths(self, intake: Intake, dispatch: Dispatch, output_len: int) -> None:
        task = self._metrics.slo.task_label(intake.info.task)
        self._metrics.lengths.labels(task).inc()
        for level in LENGTH_LEVELS:
            if output_len <= dispatch.lengths.quantile(level):
                self._metrics.lengths_within.labels(task, f"{level:g}").inc()

    def _judge(self, intake: Intake, outcome: Outcome) -> str:
        """Outcome label, and which objectives were missed."""
        if not outcome.complete:
            return _error_outcome(outcome.status)
        info = intake.info
        first_s = outcome.first_s or outcome.end_s
        steps = outcome.output_len - 1
        tpot_s = (outcome.end_s - first_s) / steps if steps > 0 else 0.0
        late = info.slo.missed_by(first_s - info.arrival_s, tpot_s, outcome.end_s - info.arrival_s)
        task = self._metrics.slo.task_label(info.task)
        for metric in late:
            self._metrics.slo.missed.labels(task, metric).inc()
        return "missed" if late else "met"


def _error_outcome(status: int) -> str:
    """The outcome label of a request that ended in an HTTP error, or in a broken stream (status 200)."""
    return "invalid" if 400 <= status < 500 else "failed"


def error_response(error: RequestError) -> web.Response:
    """An OpenAI-shaped error answer."""
    return web.json_response(error.body(), status=error.status, headers=error.headers)
