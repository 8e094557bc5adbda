# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""What the gateway does with each request (gateway/proxy.py, gateway/relay.py), on simulated instances."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from vllm_goodput.bench.record import Record
from vllm_goodput.bench.replay import INTERRUPTED, Observer
from vllm_goodput.bench.row import TraceRow
from vllm_goodput.errors import RejectedError
from vllm_goodput.gateway.proxy import MAX_ATTEMPTS, REASK_S
from vllm_goodput.router import Dispatch, Hold, Reject, Router
from vllm_goodput.router.types import Migration
from vllm_goodput.sim.engine import Output
from vllm_goodput.sim.job import Job, info_of
from vllm_goodput.sim.loop import EventLoop
from vllm_goodput.sim.member import Member
from vllm_goodput.sim.prompts import PromptKeys
from vllm_goodput.sim.sequence import Seq
from vllm_goodput.sim.spec import SimOptions


class Serving:
    """Requests from arrival to record.

    Args:
        rows: the trace.
        router: decides; told of everything that happens.
        options: of the simulation.
        observer: told of progress.
        loop: the event loop.
        members: instances by name; filled in by the caller.
    """

    def __init__(
        self,
        rows: Sequence[TraceRow],
        router: Router,
        options: SimOptions,
        observer: Observer | None,
        loop: EventLoop,
        members: Mapping[str, Member],
    ) -> None:
        self.ended = 0
        self.rejected_s = float("-inf")  # when a request was last rejected as infeasible
        self._rows = rows
        self._router = router
        self._options = options
        self._observer = observer
        self._loop = loop
        self._members = members
        self._prompts = PromptKeys(rows, options.share_session_prefix)
        self._jobs: list[Job] = []
        self._open: dict[str, Job] = {}  # dispatched, by request id
        self._by_seq: dict[Seq, Job] = {}
        self._held = 0
        self._rng = random.Random(options.seed)

    def records(self) -> list[Record]:
        """One per request that arrived; what is open is ended as interrupted."""
        for job in self._jobs:
            if job.record is None:
                job.fail(self._loop.now_s, INTERRUPTED, None)
        return [job.record for job in self._jobs if job.record is not None]

    def arrive(self) -> None:
        """The next row's request comes in; schedules the one after it."""
        index = len(self._jobs)
        row = self._rows[index]
        options, router = self._options, self._router
        info = info_of(
            index,
            row,
            options.model,
            options.streaming,
            router.config.use_max_tokens,
            self._prompts.blocks(index),
        )
        job = Job(index, row, info, router.predictor.predict(info))
        self._jobs.append(job)
        if index + 1 < len(self._rows):
            self._loop.at(self._rows[index + 1].arrival_s, self.arrive)
        if options.timeout_s is not None:
            self._loop.at(row.arrival_s + options.timeout_s, partial(self._give_up, job))
        if self._observer is not None:
            self._observer.sent()
        self._place(job)

    def report_progress(self) -> None:
        """Tell the router how many tokens have arrived of every open request."""
        now_s = self._loop.now_s
        at_s = now_s - self._options.overheads.token_s
        ids: list[str] = []
        tokens: list[int] = []
        for member in self._members.values():
            steps = member.engine.ended_steps(at_s)
            for seq in member.engine.running:
                if seq.started and (job := self._by_seq.get(seq)) is not None:
                    ids.append(job.info.request_id)
                    tokens.append(max(1, seq.outputs(steps)))
        self._router.on_progress_many(ids, tokens, now_s)

    def lose(self, member: Member) -> None:
        """An instance has died: its requests are tried elsewhere, or fail if their answers have begun."""
        for job in [job for job in self._open.values() if job.member is member]:
            self._attempt_failed(job)

    def move(self, migration: Migration) -> None:
        """Take a request out of its instance and send it, with what it has generated, to another."""
        job = self._open.get(migration.request_id)
        if job is None or job.seq is None or job.member is None or job.seq.gone:
            return  # it has ended, or is on its way
        target = self._members[migration.dispatch.instance]
        if not target.alive or job.member.spec.name != migration.source:
            return
        generated = self._detach(job)
        job.generated = generated
        if generated and job.first_s is None:
            self._first_token(job)
        self._router.on_migrated(replace(migration, generated=generated), self._loop.now_s)
        job.migrations += 1
        delay_s = self._options.migration_delay_s
        if delay_s is None:
            delay_s = self._router.config.migration.transfer_s
        self._send(job, target, delay_s)

    def on_outputs(self, outputs: Sequence[Output]) -> None:
        """Tokens have left an engine."""
        now_s = self._loop.now_s + self._options.overheads.token_s
        for output in outputs:
            if output.first or output.last:
                self._loop.at(now_s, partial(self._deliver, output))

    def _place(self, job: Job) -> None:
        """Ask the router; again later if it says so."""
        if job.record is not None:
            return
        now_s = self._loop.now_s
        if self._options.progress_interval_s == 0:
            self.report_progress()
        decision = self._router.route(job.info, now_s, job.lengths)
        if isinstance(decision, Hold):
            self._hold(job, decision)
            return
        self._unhold(job)
        if isinstance(decision, Reject):
            self._reject(job, RejectedError(decision.reason, decision.message))
            return
        self._dispatch(job, decision)

    def _hold(self, job: Job, decision: Hold) -> None:
        if not job.held:
            if self._held >= self._router.config.max_held:
                self._reject(job, RejectedError("saturated", "too many requests wait for capacity"))
                return
            job.held = True
            self._held += 1
        wait_s = max(decision.retry_at_s - self._loop.now_s, self._held * REASK_S)
        self._loop.at(self._loop.now_s + wait_s, partial(self._place, job))

    def _unhold(self, job: Job) -> None:
        if job.held:
            job.held = False
            self._held -= 1

    def _reject(self, job: Job, error: RejectedError) -> None:
        if error.reason == "infeasible":
            self.rejected_s = self._loop.now_s
        text = f"HTTP {error.status}: {error}"
        self._end(job, job.fail(self._loop.now_s, text, error.status, error.reason))

    def _dispatch(self, job: Job, dispatch: Dispatch) -> None:
        now_s = self._loop.now_s
        self._router.on_dispatched(job.info, dispatch, now_s)
        job.note_dispatch(dispatch, now_s)
        self._open[job.info.request_id] = job
        member = self._members[dispatch.instance]
        overheads = self._options.overheads
        delay_s = overheads.submit_s(job.row.prompt_len)
        if overheads.jitter_s > 0:
            delay_s += self._rng.expovariate(1.0 / overheads.jitter_s)
        self._send(job, member, delay_s)

    def _send(self, job: Job, member: Member, delay_s: float) -> None:
        job.member = member
        member.jobs += 1
        job.place += 1
        self._loop.at(self._loop.now_s + delay_s, partial(self._submit, job, member, job.place))

    def _submit(self, job: Job, member: Member, place: int) -> None:
        """The request reaches the engine."""
        if job.place != place:
            return
        if not member.alive:
            self._attempt_failed(job)
            return
        row = job.row
        seq = Seq(
            row.prompt_len,
            row.output_len,
            self._prompts.of(job.index, member.spec.block_size),
            self._prompts.own(job.index),
            done=job.generated,
        )
        if not member.engine.fits(seq):
            self._fail(job, "HTTP 400: longer than the instance's KV cache", 400)
            return
        job.seq = seq
        self._by_seq[seq] = job
        member.submit(seq)

    def _deliver(self, output: Output) -> None:
        job = self._by_seq.get(output.seq)
        if job is None:
            return  # the client has gone, or the request has moved
        if output.first:
            self._first_token(job)
        if output.last:
            self._finish(job)

    def _first_token(self, job: Job) -> None:
        now_s = self._loop.now_s
        if job.first_s is None:
            job.first_s = now_s
        if self._options.streaming:
            self._router.on_first_token(job.info.request_id, now_s)
            self._router.on_progress(job.info.request_id, job.generated + 1, now_s)

    def _finish(self, job: Job) -> None:
        now_s = self._loop.now_s
        self._router.on_finished(job.info.request_id, job.row.output_len, now_s)
        if job.member is not None and job.seq is not None:
            job.member.finished += 1
            job.member.count(job.seq)
        self._leave(job)
        self._end(job, job.finish(now_s, self._options.streaming))

    def _detach(self, job: Job) -> int:
        """Take a request off its instance; returns the tokens that it has generated."""
        member, seq = job.member, job.seq
        generated = job.generated
        if member is not None and member.alive and seq is not None and not seq.gone:
            generated = member.remove(seq)
        self._leave(job)
        return generated

    def _leave(self, job: Job) -> None:
        """Nothing of the request is at its instance any more, or on its way there."""
        if job.seq is not None:
            del self._by_seq[job.seq]
        if job.member is not None:
            job.member.jobs -= 1
        job.member = job.seq = None
        job.place += 1

    def _attempt_failed(self, job: Job) -> None:
        """The instance does not answer any more."""
        if job.first_s is not None:
            error = "error in the answer: the instance ended the stream before it was complete"
            self._fail(job, error, 200)
            return
        name = job.instance
        self._give_back(job)
        job.attempts += 1
        if job.attempts >= MAX_ATTEMPTS or name is None:
            text = f"HTTP 502: {MAX_ATTEMPTS} instances failed to answer"
            self._end(job, job.fail(self._loop.now_s, text, 502))
            return
        job.info = replace(job.info, excluded=job.info.excluded | {name})
        self._place(job)

    def _fail(self, job: Job, error: str, status: int | None) -> None:
        self._give_back(job)
        self._end(job, job.fail(self._loop.now_s, error, status))

    def _give_back(self, job: Job) -> None:
        """The router hears of a failed request; its instance, if it lives, is rid of it."""
        self._detach(job)
        if self._open.pop(job.info.request_id, None) is not None:
            self._router.on_failed(job.info.request_id, self._loop.now_s)

    def _give_up(self, job: Job) -> None:
        """The client waits no longer."""
        if job.record is None:
            self._unhold(job)
            text = f"no whole answer within {self._options.timeout_s:g} s"
            self._fail(job, text, 200 if job.first_s is not None else None)

    def _end(self, job: Job, record: Record) -> None:
        self._open.pop(job.info.request_id, None)
        self.ended += 1
        if self._observer is not None:
            self._observer.done(record)
