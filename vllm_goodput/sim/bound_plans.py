# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The ways in which each request of a trace can be served in time, and the machine time that each way uses at least.

docs/goodput-bound.md has the model and the proofs. A way ("plan") is a weighting of kinds of instances; each of its
pieces is work in machine-seconds on one kind within one window of time. A real schedule is at least a mixture of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vllm_goodput.bench.row import TraceRow
from vllm_goodput.emulation import DeviceProfile
from vllm_goodput.sim.bound_prefix import Fresh, fresh_tokens
from vllm_goodput.slo import SLO

# Latencies that exceed an objective by less are rounding.
SLACK_S = 1e-8


class BoundInstance(Protocol):
    """What the bound needs to know of an instance; `SimInstance` has it."""

    @property
    def profile(self) -> DeviceProfile:
        """Device that it runs on."""

    @property
    def scale(self) -> float:
        """Factor on every time of the profile."""

    @property
    def max_num_seqs(self) -> int:
        """Most sequences in a step."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Most tokens in a step."""


@dataclass(frozen=True)
class Kind:
    """Equal instances: a step with n sequences takes base_s + seq_s * n, and token_s per prefilled token."""

    base_s: float
    seq_s: float
    token_s: float
    max_seqs: int
    max_tokens: int

    @staticmethod
    def of(instance: BoundInstance) -> Kind:
        """The kind of an instance."""
        profile, seqs, tokens = (
            instance.profile,
            instance.max_num_seqs,
            instance.max_num_batched_tokens,
        )
        base_s = profile.base_s * instance.scale
        seq_s = profile.per_running_seq_s * instance.scale
        # A chunk of one token counts as a decode; neither its time nor its share of a step is less than this.
        single_s = min(base_s / seqs + seq_s, (base_s + seq_s) / 2) if tokens > 1 else 0.0
        token_s = min(profile.per_prefill_token_s * instance.scale, single_s)
        return Kind(base_s, seq_s, token_s, seqs, tokens)

    def step_s(self, sequences: float) -> float:
        """Least time of a step with so many sequences."""
        return self.base_s + self.seq_s * sequences

    def share_s(self, sequences: float) -> float:
        """Least machine time of one of the sequences of such a step."""
        return self.base_s / sequences + self.seq_s

    def batch(self, step_s: float) -> float:
        """Most sequences (at least 1) in steps that take `step_s` on average; 0 if even one takes longer."""
        if self.step_s(1) > step_s:
            return 0.0
        if self.seq_s <= 0:
            return float(self.max_seqs)
        return min(float(self.max_seqs), max(1.0, (step_s - self.base_s) / self.seq_s))


@dataclass(frozen=True)
class Demand:
    """One request. Times in seconds.

    Args:
        arrival_s: when it arrives.
        output_len: tokens to generate, one in each of its steps.
        fresh: its new prompt tokens.
        slo: its objectives.
    """

    arrival_s: float
    output_len: int
    fresh: Fresh
    slo: SLO

    @property
    def decodes(self) -> int:
        """Steps after the first token's."""
        return self.output_len - 1

    @property
    def ttft_s(self) -> float:
        """Longest time to the first token."""
        return self.slo.ttft_s + SLACK_S

    @property
    def decode_s(self) -> float:
        """Longest time from the first token to the last."""
        return self.slo.tpot_s * self.decodes + SLACK_S if self.decodes else 0.0

    @property
    def due_s(self) -> float:
        """Longest time to the last token."""
        return min(self.slo.e2el_s + SLACK_S, self.ttft_s + self.decode_s)

    def prefill_s(self, kinds: Sequence[Kind]) -> float:
        """Least time from arrival to the first token's own step, on the best of some kinds."""
        chunks = min(-(-self.fresh.tokens // kind.max_tokens) for kind in kinds)
        step_s, token_s = min(k.step_s(1) for k in kinds), min(k.token_s for k in kinds)
        return max(0, chunks - 1) * step_s + self.fresh.charged * token_s

    def last_first_s(self, step_s: float) -> float:
        """Latest time of the first token, if a step takes `step_s` at least."""
        return min(self.ttft_s, self.due_s - self.decodes * step_s)


def demands_of(rows: Sequence[TraceRow]) -> list[Demand]:
    """One demand per row."""
    return [
        Demand(row.arrival_s, max(1, row.output_len), fresh, row.slo)
        for row, fresh in zip(rows, fresh_tokens(rows), strict=True)
    ]


def kinds_of(instances: Iterable[BoundInstance], most: int) -> list[tuple[Kind, int]]:
    """Kinds and how many instances each has; where there are more than `most`, similar ones become the best of them."""
    kinds = sorted(Counter(Kind.of(instance) for instance in instances).items(), key=_speed)
    parts = min(most, len(kinds))
    return [
        _merged(kinds[len(kinds) * part // parts : len(kinds) * (part + 1) // parts])
        for part in range(parts)
    ]


def _speed(entry: tuple[Kind, int]) -> float:
    return entry[0].share_s(entry[0].max_seqs)


def _merged(kinds: Sequence[tuple[Kind, int]]) -> tuple[Kind, int]:
    """One kind that is as good as each of these in everything."""
    every = [kind for kind, _ in kinds]
    best = Kind(
        min(kind.base_s for kind in every),
        min(kind.seq_s for kind in every),
        min(kind.token_s for kind in every),
        max(kind.max_seqs for kind in every),
        max(kind.max_tokens for kind in every),
    )
    return best, sum(count for _, count in kinds)


@dataclass(frozen=True)
class Piece:
    """Work of `work_s` machine-seconds on one kind, somewhere between two times."""

    kind: int
    start_s: float
    end_s: float
    work_s: float


@dataclass
class Plans:
    """Plans of several requests. To be met, a request needs one plan (or a mixture) from each of its groups.

    Args:
        feasible: whether a request can be met at all; one without groups is met for nothing.
        group_request: request of each group.
        plan_group: group of each plan, ascending.
        pieces: (plan, piece) pairs.
    """

    feasible: list[bool] = field(default_factory=list)
    group_request: list[int] = field(default_factory=list)
    plan_group: list[int] = field(default_factory=list)
    pieces: list[tuple[int, Piece]] = field(default_factory=list)

    def add(self, groups: Sequence[Sequence[Sequence[Piece]]] | None) -> None:
        """The next request's groups of plans; None where it cannot be met."""
        for group in groups or ():
            for plan in group:
                kept = (p for p in plan if p.end_s < math.inf and p.work_s > 0)
                self.pieces += [(len(self.plan_group), piece) for piece in kept]
                self.plan_group.append(len(self.group_request))
            self.group_request.append(len(self.feasible))
        self.feasible.append(groups is not None)


def plans_of(demands: Iterable[Demand], kinds: Sequence[Kind], migration: bool) -> Plans:
    """The plans of every request.

    Args:
        demands: the requests.
        kinds: of instances.
        migration: whether a request may be continued on another instance.
    """
    plans = Plans()
    for demand in demands:
        plans.add(_moving(demand, kinds) if migration else _staying(demand, kinds))
    return plans


def _staying(demand: Demand, kinds: Sequence[Kind]) -> list[list[list[Piece]]] | None:
    """One plan per kind that can do it all."""
    plans = [_stay(demand, index, kind) for index, kind in enumerate(kinds)]
    able = [plan for plan in plans if plan is not None]
    return [able] if able else None


def _stay(demand: Demand, index: int, kind: Kind) -> list[Piece] | None:
    """The pieces until the first token, from then on, and what both take more than each of them has to."""
    step_s, prefill_s, decodes = kind.step_s(1), demand.prefill_s([kind]), demand.decodes
    last_first_s = demand.last_first_s(step_s)
    first = kind.batch(last_first_s - prefill_s)
    left_s = min(demand.due_s - prefill_s - step_s, demand.decode_s)
    batch = kind.batch(left_s / decodes) if decodes else 1.0
    if not (first and batch):
        return None
    time_s = min(demand.due_s - prefill_s, demand.decode_s + kind.step_s(first))
    both_s = demand.output_len * kind.share_s(kind.batch(time_s / demand.output_len))
    first_s, rest_s = kind.share_s(first), decodes * kind.share_s(batch)
    start_s, end_s = demand.arrival_s, demand.arrival_s + demand.due_s
    fresh_s = kind.token_s * demand.fresh.charged
    return [
        Piece(index, start_s, start_s + last_first_s, fresh_s + first_s),
        Piece(index, start_s + prefill_s + step_s, end_s, rest_s),
        Piece(index, start_s, end_s, max(0.0, both_s - first_s - rest_s)),
    ]


def _moving(demand: Demand, kinds: Sequence[Kind]) -> list[list[list[Piece]]] | None:
    """Plans on one kind, and on two of which one is too slow alone; a first group for the first token if it is due."""
    step_s, prefill_s = min(k.step_s(1) for k in kinds), demand.prefill_s(kinds)
    decodes, due_s, start_s = demand.decodes, demand.due_s, demand.arrival_s
    last_first_s = demand.last_first_s(step_s)
    if prefill_s + step_s > last_first_s or decodes * step_s > demand.decode_s:
        return None
    if last_first_s == math.inf:
        return []
    if demand.ttft_s == math.inf:
        longest_s = max(k.step_s(k.max_seqs) for k in kinds)  # of the first token's step
        time_s = min(due_s - prefill_s, demand.decode_s + longest_s)
        window = (start_s, start_s + due_s)
        return [list(_shared(kinds, demand.output_len, time_s, window, demand.fresh.charged))]
    firsts = []
    for index, kind in enumerate(kinds):
        batch = kind.batch(last_first_s - prefill_s)
        if batch:
            work_s = kind.token_s * demand.fresh.charged + kind.share_s(batch)
            firsts.append([Piece(index, start_s, start_s + last_first_s, work_s)])
    if not decodes or due_s == math.inf:
        return [firsts]
    window = (start_s + prefill_s + step_s, start_s + due_s)
    time_s = min(due_s - prefill_s - step_s, demand.decode_s)
    return [firsts, list(_shared(kinds, decodes, time_s, window, 0))]


def _shared(
    kinds: Sequence[Kind], steps: int, time_s: float, window: tuple[float, float], tokens: int
) -> Iterator[list[Piece]]:
    """Plans for `steps` steps that take `time_s` at most; every kind in use prefills `tokens` itself."""
    mean_s = time_s / steps
    least_s = min(kind.step_s(1) for kind in kinds)
    # Of each: kind, time of a step, machine time of a sequence in it.
    points: list[tuple[int, float, float]] = []
    for index, kind in enumerate(kinds):
        batch = kind.batch(mean_s)
        if batch:
            work_s = steps * kind.share_s(batch) + kind.token_s * tokens
            yield [Piece(index, *window, work_s)]
        # Too slow for a single step, the others being as fast as can be: of no use.
        elif steps * (mean_s - least_s) < kind.step_s(1) - least_s:
            continue
        points += [(index, *point) for point in _tangent(kind, batch)]
    for slow, slow_s, slow_share_s in points:
        for fast, fast_s, fast_share_s in points:
            if slow != fast and fast_s <= mean_s < slow_s:
                # The most steps that the slow one can do.
                part = steps * (mean_s - fast_s) / (slow_s - fast_s)
                slow_work_s = part * slow_share_s + kinds[slow].token_s * tokens
                fast_work_s = (steps - part) * fast_share_s + kinds[fast].token_s * tokens
                yield [Piece(slow, *window, slow_work_s), Piece(fast, *window, fast_work_s)]


def _tangent(kind: Kind, batch: float) -> list[tuple[float, float]]:
    """Corners of two lines below the curve (step_s(n), share_s(n)): the tangent at `batch`, and the curve's least.

    Args:
        kind: of instances.
        batch: 0 stands for the largest.
    """
    most = float(kind.max_seqs)
    least_s = kind.share_s(most)
    if batch >= most or kind.seq_s <= 0:
        return [(kind.step_s(1), least_s)]  # coarser, but it matters little
    at = batch or most
    meets = 2 * at - at * at / most
    top_s = kind.base_s * (2 / at - 1 / at**2) + kind.seq_s
    return [(kind.step_s(1), top_s), (kind.step_s(meets), least_s)]
