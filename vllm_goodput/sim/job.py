# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One request of a simulated trace: what the router knows of it, where it is, and its record at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_goodput.bench.record import Record
from vllm_goodput.bench.row import TraceRow
from vllm_goodput.gateway.prefix_keys import prefix_blocks
from vllm_goodput.predictor import LengthDistribution
from vllm_goodput.predictor.view import view_of
from vllm_goodput.router import Dispatch, RequestInfo
from vllm_goodput.router.prefix import Blocks
from vllm_goodput.sim.member import Member
from vllm_goodput.sim.sequence import Seq


@dataclass(eq=False, slots=True)
class Job:
    """A request that has arrived.

    Args:
        index: place in the trace.
        row: of the trace.
        info: for the router.
        lengths: predicted for it.
        member: where it is dispatched to; None while it is placed.
        seq: in that instance's engine; None while it travels.
        generated: output tokens that it takes to the next engine.
        attempts: dispatches that failed before the first token.
        place: raised when it moves, so that what was under way to its old place is void.
    """

    index: int
    row: TraceRow
    info: RequestInfo
    lengths: LengthDistribution
    member: Member | None = None
    seq: Seq | None = None
    generated: int = 0
    attempts: int = 0
    place: int = 0
    held: bool = False
    first_s: float | None = None
    predicted_ms: float | None = None
    instance: str | None = None
    migrations: int = 0
    record: Record | None = None

    def note_dispatch(self, dispatch: Dispatch, now_s: float) -> None:
        """What the answer's headers will say."""
        self.instance = dispatch.instance
        waited_s = now_s - self.row.arrival_s
        self.predicted_ms = (waited_s + dispatch.prediction.e2el_s) * 1e3

    def finish(self, now_s: float, streamed: bool) -> Record:
        """The whole answer is with the client."""
        arrival_s, tokens = self.row.arrival_s, self.row.output_len
        first_s = now_s if self.first_s is None or not streamed else self.first_s
        e2el_s = now_s - arrival_s
        self.record = self._record(
            finished_s=now_s,
            status=200,
            completed=True,
            ttft_s=first_s - arrival_s,
            tpot_s=(now_s - first_s) / (tokens - 1) if streamed and tokens > 1 else None,
            e2el_s=e2el_s,
            output_tokens=tokens,
            instance=self.instance,
            predicted_e2el_ms=self.predicted_ms,
            migrations=self.migrations,
        )
        return self.record

    def fail(
        self, now_s: float, error: str, status: int | None, reason: str | None = None
    ) -> Record:
        """It ended some other way."""
        self.record = self._record(
            finished_s=now_s,
            status=status,
            error=error,
            reject_reason=reason,
            instance=self.instance if status == 200 else None,
            predicted_e2el_ms=self.predicted_ms if status == 200 else None,
            ttft_s=None if self.first_s is None else self.first_s - self.row.arrival_s,
            migrations=self.migrations,
        )
        return self.record

    def _record(self, **fields: Any) -> Record:
        row = self.row
        return Record(
            index=self.index,
            arrival_s=row.arrival_s,
            prompt_len=row.prompt_len,
            output_len=row.output_len,
            slo=row.slo,
            task=row.task,
            session=row.session,
            request_id=self.info.request_id,
            **fields,
        )


def info_of(
    index: int,
    row: TraceRow,
    model: str | None,
    streaming: bool,
    use_max_tokens: bool,
    made_up: Blocks | None = None,
) -> RequestInfo:
    """What the gateway's intake makes of the request that a replay of the row would send.

    Args:
        index: place in the trace.
        row: of the trace.
        model: name asked for.
        streaming: whether the answer is streamed.
        use_max_tokens: whether the predictor may see the request's own limit, which is its true length.
        made_up: keys of the prompt that a replay makes up where the row has none.
    """
    body: dict[str, Any] = {"model": model or "", "prompt": row.prompt}
    if row.messages is not None:
        body["messages"] = [{"role": role, "content": text} for role, text in row.messages]
    return RequestInfo(
        request_id=f"sim-{index}",
        prompt_len=row.prompt_len,
        arrival_s=row.arrival_s,
        slo=row.slo,
        task=row.task,
        session=row.session,
        max_tokens=row.output_len,
        model=model,
        streaming=streaming,
        view=view_of(
            body,
            row.messages is not None,
            row.prompt_len,
            row.output_len if use_max_tokens else None,
        ),
        blocks=prefix_blocks(body, row.messages is not None, row.prompt_len, model)
        if row.messages is not None or row.prompt is not None
        else made_up,
    )
