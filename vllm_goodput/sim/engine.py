# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""One vLLM V1 engine as its scheduler sees it (vllm/v1/core/sched/scheduler.py, vllm/v1/engine/core.py).

In each step every running sequence decodes one token, a prompt under way gets what is left of the token budget, and
then waiting ones are admitted in order of arrival while budget, sequences and KV blocks last. When decodes find no
block, the sequence admitted last loses its own and waits, first in line, to compute them again. A step takes the device
profile's time. With asynchronous scheduling a step is decided when the one before it begins, else when that one ends.

While nothing but decoding goes on, all steps are alike: they are decided in one go until a sequence ends, and cut short
where something arrives meanwhile. That changes no outcome (`macro=False` decides each by itself). Tests hold the times
against vLLM's own schedulers. Left out: speculative decoding, priorities, pipeline parallelism, multimodal inputs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from vllm_goodput.emulation import StepWork
from vllm_goodput.sim.decoders import Decoders
from vllm_goodput.sim.kv import KVCache
from vllm_goodput.sim.sequence import NEVER, Seq
from vllm_goodput.sim.spec import SimInstance

INF = float("inf")
ROUNDING = 1e-9  # a step has ended at its end, whatever floats make of that


@dataclass(frozen=True, slots=True)
class Output:
    """What a step brought: a sequence's first token, its last, or both."""

    at_s: float
    seq: Seq
    first: bool
    last: bool


@dataclass(slots=True)
class _Segment:
    """Steps decided together, all alike; one with prefills stands alone."""

    start_s: float
    step_s: float
    count: int
    firsts: list[Seq]  # whose prefill it completes
    lasts: list[Seq] = field(default_factory=list)  # whose last token it makes

    @property
    def end_s(self) -> float:
        return self.start_s + self.count * self.step_s

    def ended(self, at_s: float) -> int:
        """How many of the steps have ended by a time."""
        return min(self.count, max(0, int((at_s - self.start_s) / self.step_s + ROUNDING)))


class Engine:
    """A simulated engine; its caller calls `advance` at `next_s`.

    Args:
        spec: the instance.
        macro: decide steps that are alike together.
    """

    def __init__(self, spec: SimInstance, macro: bool = True) -> None:
        self.spec = spec
        self.cache = KVCache(spec.kv_tokens // spec.block_size, spec.prefix_caching)
        self.waiting: deque[Seq] = deque()
        self.running: dict[Seq, None] = {}  # by admission; those that end stay until their output
        self.slowdown = 1.0
        self.steps = 0  # decided for good
        self.prefilled = 0  # prompt tokens computed, repetitions included
        self.busy_s = 0.0
        self._macro = macro
        self._ahead = int(spec.async_scheduling)  # steps decided before the one before them ends
        self._flight: deque[_Segment] = deque()
        self._open: _Segment | None = None  # the last in flight while it can still be cut short
        self._decide_s = INF
        self._ended_steps = 0
        self._prefill: Seq | None = (
            None  # the one whose prompt is computed in part; always the last of running
        )
        self._decoders = Decoders(spec.block_size)

    @property
    def next_s(self) -> float:
        """When something happens next, if nothing comes from outside."""
        return min(self._decide_s, self._flight[0].end_s) if self._flight else self._decide_s

    def fits(self, seq: Seq) -> bool:
        """Whether the cache could ever hold the sequence."""
        return self._blocks(seq.prompt_len + seq.output_len) <= self.cache.blocks

    def submit(self, seq: Seq, now_s: float) -> None:
        """A request arrives.

        Raises:
            ValueError: the cache can never hold it.
        """
        if not self.fits(seq):
            raise ValueError(
                f"{seq.prompt_len} + {seq.output_len} tokens are more than the KV cache"
            )
        if not self.waiting and len(self.running) < self.spec.max_num_seqs:
            self._settle(now_s)  # behind others, or without a place, it changes nothing yet
        self.waiting.append(seq)
        self._wake(now_s)

    def remove(self, seq: Seq, now_s: float) -> int:
        """Take a request out before its end; returns the output tokens it has made."""
        self._settle(now_s)
        ended = self.ended_steps(now_s)
        made = seq.outputs(ended)
        if seq in self.running:
            self._vacate(seq, ended)
        elif not self._ended(seq):
            self.waiting.remove(seq)
        seq.gone = True
        self._wake(now_s)
        return made

    def set_slowdown(self, factor: float, now_s: float) -> None:
        """Steps decided from now on take `factor` times the profile's time."""
        self._settle(now_s)
        self.slowdown = factor

    def ended_steps(self, at_s: float) -> int:
        """Steps that have ended by a time, which is not before the last event."""
        return self._ended_steps + sum(segment.ended(at_s) for segment in self._flight)

    def tokens(self, seq: Seq, at_s: float) -> int:
        """Output tokens that a sequence in the engine has made by then."""
        return seq.outputs(self.ended_steps(at_s))

    def advance(self, now_s: float) -> list[Output]:
        """Let everything happen that is due; returns what came out, in order."""
        outputs: list[Output] = []
        while (at_s := self.next_s) <= now_s:
            if self._flight and self._flight[0].end_s <= at_s:
                self._land(at_s, outputs)
            else:
                self._decide(at_s)
        return outputs

    def _land(self, now_s: float, outputs: list[Output]) -> None:
        """The oldest steps in flight have ended."""
        if self._flight[0] is self._open:
            self._commit()
        segment = self._flight.popleft()
        self._ended_steps += segment.count
        self.busy_s += segment.count * segment.step_s
        lasts = [seq for seq in segment.lasts if not seq.gone]
        firsts = [seq for seq in segment.firsts if not (seq.gone or seq.started)]
        if lasts and self._open is not None:
            self._cut(1)  # places and blocks become free before its second step is decided
        for seq in lasts:
            if seq in self.running:
                del self.running[seq]
                seq.release(self.cache, self.spec.block_size, seq.end_step, seq.end_step)
            seq.gone = True
        for seq in firsts:
            seq.started = True
            outputs.append(Output(now_s, seq, True, seq in lasts))
        outputs += [Output(now_s, seq, False, True) for seq in lasts if seq not in firsts]
        self._wake(now_s)

    def _wake(self, now_s: float) -> None:
        """Decide at once if nothing is in flight."""
        if not self._flight:
            self._decide_s = min(self._decide_s, now_s)

    def _decide(self, now_s: float) -> None:
        """Decide the next step, and those after it that are alike."""
        self._commit()
        chunks: list[int] = []
        firsts: list[Seq] = []
        whole = self._reserve_decodes() and self._continue_prefill(chunks, firsts)
        if whole:
            self._admit(chunks, firsts)
        sequences = self._decoders.count + len(chunks)
        if sequences == 0:
            self._decide_s = INF
            return
        work = StepWork(sum(n for n in chunks if n > 1), sequences)
        step_s = self.spec.profile.step_s(work) * self.spec.scale * self.slowdown
        start_s = max(now_s, self._flight[-1].end_s) if self._flight else now_s
        # The step after one that took blocks away may admit somebody.
        count = self._alike() if self._macro and whole and not chunks else 1
        self._open = _Segment(start_s, step_s, count, firsts)
        self._flight.append(self._open)
        self._plan_decision()

    def _plan_decision(self) -> None:
        last = self._flight[-1]
        self._decide_s = last.start_s + (last.count - self._ahead) * last.step_s

    def _settle(self, now_s: float) -> None:
        """Something has changed: of the open steps, keep those that are decided by now."""
        segment = self._open
        if segment is not None:
            begun = int((now_s - segment.start_s) / segment.step_s) + 1
            self._cut(begun + self._ahead if now_s >= segment.start_s else 1)

    def _cut(self, count: int) -> None:
        """Make the first `count` of the open steps final; later ones are decided again."""
        assert self._open is not None
        self._open.count = min(self._open.count, count)
        self._commit()
        self._plan_decision()

    def _commit(self) -> None:
        """Make the open steps final."""
        segment, self._open = self._open, None
        if segment is None:
            return
        decoders = self._decoders
        self.cache.take(decoders.blocks(self.steps + 1, segment.count - 1))
        self.steps += segment.count
        segment.lasts = decoders.pop_ended(self.steps)
        for seq in segment.firsts:
            if seq.end_step == self.steps:
                segment.lasts.append(seq)
            else:
                decoders.join(seq, self.steps)

    def _alike(self) -> int:
        """How many steps from here on decode the same sequences and find their blocks, the next one included."""
        decoders = self._decoders
        count = decoders.next_end() - self.steps
        while decoders.blocks(self.steps + 1, count - 1) > self.cache.free:
            count = (count + 1) // 2  # decided again where it ends, so it need not be the most
        return count

    def _reserve_decodes(self) -> bool:
        """Take the next step's blocks, at the cost of the last admitted; False if some lost theirs."""
        whole = True
        while (need := self._decoders.blocks(self.steps, 1)) > self.cache.free:
            self._preempt(next(reversed(self.running)))
            whole = False
        self.cache.take(need)
        return whole

    def _continue_prefill(self, chunks: list[int], firsts: list[Seq]) -> bool:
        """Go on with the prompt under way; False if it loses its blocks for want of more."""
        seq = self._prefill
        if seq is None:
            return True
        chunk = min(seq.need - seq.computed, self._budget(chunks))
        if self._blocks(seq.computed + chunk) - seq.held > self.cache.free:
            self._preempt(seq)
            return False
        self._compute(seq, chunk, chunks, firsts)
        return True

    def _admit(self, chunks: list[int], firsts: list[Seq]) -> None:
        """Admit waiting sequences in order of arrival."""
        cache, size = self.cache, self.spec.block_size
        while self.waiting and len(self.running) < self.spec.max_num_seqs:
            budget = self._budget(chunks)
            seq = self.waiting[0]
            limit = (seq.need - 1) // size  # the last token is always computed
            known = seq.full_keys(0, limit)
            del known[cache.hits(known) :]
            missing = self._blocks(seq.need) - len(known) + cache.idle(known)
            if budget == 0 or missing > cache.free:
                return
            self.waiting.popleft()
            self.running[seq] = None
            cache.share(known)
            seq.shared, seq.held = known, len(known)
            seq.cached = seq.computed = len(known) * size
            self._compute(seq, min(seq.need - seq.computed, budget), chunks, firsts)

    def _compute(self, seq: Seq, chunk: int, chunks: list[int], firsts: list[Seq]) -> None:
        """Prefill `chunk` tokens of a running sequence in the next step."""
        blocks = self._blocks(seq.computed + chunk)
        self.cache.take(blocks - seq.held)
        seq.held = blocks
        seq.computed += chunk
        seq.publish(self.cache, self.spec.block_size)
        self.prefilled += chunk
        chunks.append(chunk)
        self._prefill = seq if seq.computed < seq.need else None
        if self._prefill is None:
            seq.end_step = self.steps + seq.output_len - seq.done
            firsts.append(seq)

    def _preempt(self, seq: Seq) -> None:
        made = seq.outputs(self.steps)  # those in flight are still delivered
        over = self._ended(seq)
        # All steps but the one that begins now have ended.
        self._vacate(seq, self.steps - bool(self._flight))
        if over:
            return  # its last token is in flight
        seq.done, seq.computed, seq.end_step = made, 0, NEVER
        seq.preemptions += 1
        self.waiting.appendleft(seq)

    def _vacate(self, seq: Seq, ended: int) -> None:
        """Take a sequence out of the batch and its blocks from it."""
        del self.running[seq]
        if seq is self._prefill:
            self._prefill = None
        elif not self._ended(seq):
            self._decoders.leave(seq, self.steps)
        seq.release(self.cache, self.spec.block_size, self.steps, ended)

    def _ended(self, seq: Seq) -> bool:
        """Whether its last token has been scheduled."""
        return seq.decoding and seq.end_step <= self.steps

    def _budget(self, chunks: list[int]) -> int:
        return self.spec.max_num_batched_tokens - self._decoders.count - sum(chunks)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_size)
