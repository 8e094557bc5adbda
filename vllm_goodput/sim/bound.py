# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""How many requests of a trace any routing policy can serve in time on a pool, at most: proven, not simulated.

A relaxation: instances are machines whose seconds can be divided at will, within windows of time; every request needs
at least so many of them between its arrival and its deadline (bound_plans.py). Seconds of each kind of instance in
each bin of time get a price, found by linear programming; at any prices, what the pool's seconds are worth plus what
each request gains at its cheapest is a bound, so that nothing depends on the solver's accuracy.
docs/goodput-bound.md has the model, the proofs and what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, hstack, vstack

from vllm_goodput.bench.row import TraceRow
from vllm_goodput.errors import ConfigError
from vllm_goodput.sim.bound_plans import (
    BoundInstance,
    Demand,
    Kind,
    Plans,
    demands_of,
    kinds_of,
    plans_of,
)

# Requests whose prices are found together, besides as many again in all around them.
SEGMENT = 1000
MAX_BINS_PER_SEGMENT = 64
MIN_BINS = 16
# A request's plans grow with its square.
MAX_KINDS = 8
# Variables of machine time in the exact problem; more take too long and too much memory.
MAX_EXACT_FLOWS = 100_000
# A bound that exceeds a whole number by less is that number.
ROUNDING = 1e-6

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Bound:
    """An upper bound on the requests of a trace that meet all their SLOs.

    Args:
        met: no policy meets more.
        requests: offered.
        feasible_alone: those that can be met with the pool to themselves.
        value: the bound before rounding down.
        bins: of time.
        exact: whether `met` is the relaxed model's best whole number.
        migration: whether policies may continue a request on another instance.
    """

    met: int
    requests: int
    feasible_alone: int
    value: float
    bins: int
    exact: bool
    migration: bool

    @property
    def slo_attainment(self) -> float | None:
        """The bound over the requests offered; None without requests."""
        return self.met / self.requests if self.requests else None

    def goodput(self, duration_s: float) -> float:
        """The bound in requests per second of a trace that lasts `duration_s`."""
        return self.met / duration_s


def upper_bound(
    rows: Sequence[TraceRow],
    instances: Sequence[BoundInstance],
    *,
    bins: int | None = None,
    exact: bool = False,
    migration: bool = True,
) -> Bound:
    """Bound the number of requests that meet all their SLOs, under any policy that knows everything.

    Args:
        rows: the trace.
        instances: the pool; thousands are fine, and all the finer if of at most eight kinds.
        bins: of time, of equal length; fewer are faster and give a higher bound. None: about one per median deadline.
        exact: solve the relaxed model for whole requests, with bins at every arrival and deadline and every instance
            by itself; for a few dozen requests.
        migration: also bound policies that continue requests on other instances, recomputing what they need there.

    Raises:
        ConfigError: there is no instance, `bins` is not positive, or the exact problem is too large.
    """
    if not instances:
        raise ConfigError("instances: at least one is required")
    if bins is not None and bins < 1:
        raise ConfigError(f"bins must be at least 1, got {bins!r}")
    demands = sorted(demands_of(rows), key=lambda demand: demand.arrival_s)
    if exact:
        plans = plans_of(demands, [Kind.of(instance) for instance in instances], migration)
        edges = _event_edges(plans)
        # With migration a request may take a mixture of plans, whole only in the sum.
        value = _Program(plans, np.ones(len(instances)), edges).whole(binary_plans=not migration)
        feasible = sum(plans.feasible)
    else:
        pool = kinds_of(instances, MAX_KINDS)
        kinds, counts = [kind for kind, _ in pool], np.array([float(count) for _, count in pool])
        edges = _even_edges(demands, bins)
        value, feasible = _priced(demands, kinds, counts, edges, migration)
    value = min(value, float(feasible))
    met = math.floor(value + ROUNDING)
    return Bound(met, len(rows), feasible, value, len(edges) - 1, exact, migration)


def _priced(
    demands: Sequence[Demand],
    kinds: Sequence[Kind],
    counts: FloatArray,
    edges: FloatArray,
    migration: bool,
) -> tuple[float, int]:
    """The bound at the prices found segment by segment, and how many requests are feasible."""
    prices = np.zeros((len(counts), len(edges) - 1))
    segments = list(_segments(len(demands)))
    for start, end in segments:
        context = demands[max(0, start - SEGMENT // 2) : end + SEGMENT // 2]
        program = _Program(plans_of(context, kinds, migration), counts, edges)
        first = 0 if start == 0 else _bin(edges, demands[start].arrival_s)
        last = None if end == len(demands) else _bin(edges, demands[end].arrival_s)
        prices[:, first:last] = program.prices()[:, first:last]
    gains = feasible = 0.0
    for start, end in segments:
        plans = plans_of(demands[start:end], kinds, migration)
        gains += _Program(plans, counts, edges).gains(prices)
        feasible += sum(plans.feasible)
    return gains + float((prices * np.outer(counts, np.diff(edges))).sum()), int(feasible)


class _Program:
    """The relaxed model of some requests: variables are requests met, plans taken, and machine time by class and bin.

    A class is the work on one kind that has to be done in the same run of bins.

    Args:
        plans: of the requests.
        counts: instances of each kind.
        edges: of the bins, seconds, ascending.
    """

    def __init__(self, plans: Plans, counts: FloatArray, edges: FloatArray) -> None:
        self._plans = plans
        self._bins = bins = len(edges) - 1
        self._capacity = np.outer(counts, np.diff(edges)).ravel()
        pieces = [piece for _, piece in plans.pieces]
        self._piece_plan = np.array([plan for plan, _ in plans.pieces], dtype=np.int64)
        self._piece_work = np.array([piece.work_s for piece in pieces], dtype=float)
        starts = np.array([piece.start_s for piece in pieces], dtype=float)
        ends = np.array([piece.end_s for piece in pieces], dtype=float)
        kind = np.array([piece.kind for piece in pieces], dtype=np.int64)
        first = np.clip(np.searchsorted(edges, starts, "right") - 1, 0, bins - 1)
        last = np.clip(np.searchsorted(edges, ends, "left"), first + 1, bins)
        keys, self._piece_class = np.unique(
            (kind * bins + first) * (bins + 1) + last, return_inverse=True
        )
        self._class_first, self._class_last = keys // (bins + 1), keys % (bins + 1)
        self._class_last += (
            self._class_first // bins * bins
        )  # both count bins of all kinds in a row

    def prices(self) -> FloatArray:
        """What a machine-second is worth, in requests, by kind and bin; 0 throughout if the solver fails."""
        shape = (-1, self._bins)
        if not len(self._class_first):
            return np.zeros_like(self._capacity).reshape(shape)
        matrix, limits, upper = self._constraints()
        for method in ("highs-ipm", "highs-ds"):
            result = linprog(
                -self._objective(matrix),
                A_ub=matrix,
                b_ub=limits,
                bounds=np.column_stack([np.zeros_like(upper), upper]),
                method=method,
            )
            if result.status == 0:
                duals: FloatArray = -result.ineqlin.marginals[-len(self._capacity) :]
                return np.maximum(duals, 0.0).reshape(shape)
        return np.zeros_like(self._capacity).reshape(shape)

    def gains(self, prices: FloatArray) -> float:
        """The sum of max(0, 1 - cost of its cheapest plans) over the requests."""
        plans, flat = self._plans, prices.ravel()
        cheapest = [
            flat[a:b].min() for a, b in zip(self._class_first, self._class_last, strict=True)
        ]
        costs = self._piece_work * np.array(cheapest)[self._piece_class]
        plan_cost = np.bincount(self._piece_plan, costs, len(plans.plan_group))
        group_cost = np.full(len(plans.group_request), np.inf)
        np.minimum.at(group_cost, np.array(plans.plan_group, dtype=np.int64), plan_cost)
        feasible = np.array(plans.feasible, dtype=float)
        group_request = np.array(plans.group_request, dtype=np.int64)
        request_cost = np.bincount(group_request, group_cost, len(feasible))
        return float((feasible * np.maximum(0.0, 1.0 - request_cost)).sum())

    def whole(self, binary_plans: bool) -> float:
        """The most whole requests; `binary_plans`: each with one plan instead of a mixture."""
        if not len(self._class_first):
            return float(sum(self._plans.feasible))
        flows = int((self._class_last - self._class_first).sum())
        if flows > MAX_EXACT_FLOWS:
            raise ConfigError(
                f"exact: requests x instances x bins must be at most {MAX_EXACT_FLOWS}, got {flows}"
            )
        matrix, limits, upper = self._constraints()
        integral = np.zeros(matrix.shape[1])
        requests, plans = len(self._plans.feasible), len(self._plans.plan_group)
        integral[: requests + (plans if binary_plans else 0)] = 1
        result = milp(
            -self._objective(matrix),
            integrality=integral,
            bounds=Bounds(0, upper),
            constraints=LinearConstraint(matrix, -np.inf, limits),
        )
        bound = getattr(result, "mip_dual_bound", None)
        return float(requests) if bound is None else -float(bound)

    def _objective(self, matrix: csr_array) -> FloatArray:
        met = np.zeros(matrix.shape[1])
        met[: len(self._plans.feasible)] = 1.0
        return met

    def _constraints(self) -> tuple[csr_array, FloatArray, FloatArray]:
        """Matrix, right-hand sides (<=) and upper bounds: groups served, work done, time there is."""
        plans = self._plans
        requests, groups, taken = (
            len(plans.feasible),
            len(plans.group_request),
            len(plans.plan_group),
        )
        classes, slots = len(self._class_first), len(self._capacity)
        lengths = self._class_last - self._class_first
        flows = int(lengths.sum())
        flow_class = np.repeat(np.arange(classes), lengths)
        offsets = np.cumsum(lengths) - lengths
        flow_slot = np.arange(flows) - offsets[flow_class] + self._class_first[flow_class]
        each = np.arange(flows)
        met = _sparse(np.arange(groups), plans.group_request, 1.0, (groups, requests))
        served = _sparse(plans.plan_group, np.arange(taken), -1.0, (groups, taken))
        work = _sparse(self._piece_class, self._piece_plan, self._piece_work, (classes, taken))
        done = _sparse(flow_class, each, -1.0, (classes, flows))
        used = _sparse(flow_slot, each, 1.0, (slots, flows))
        matrix = vstack(
            [
                hstack([met, served, csr_array((groups, flows))]),
                hstack([csr_array((classes, requests)), work, done]),
                hstack([csr_array((slots, requests + taken)), used]),
            ],
            format="csr",
        )
        limits = np.concatenate([np.zeros(groups + classes), self._capacity])
        upper = np.concatenate(
            [np.array(plans.feasible, dtype=float), np.full(taken + flows, np.inf)]
        )
        return matrix, limits, upper


def _sparse(
    rows: Sequence[int] | IntArray,
    columns: Sequence[int] | IntArray,
    values: float | FloatArray,
    shape: tuple[int, int],
) -> csr_array:
    data = np.broadcast_to(np.asarray(values, dtype=float), (len(rows),))
    return csr_array((data, (np.asarray(rows, dtype=np.int64), columns)), shape=shape)


def _segments(count: int) -> Iterator[tuple[int, int]]:
    """Runs of about SEGMENT requests, all of them equally long."""
    parts = max(1, round(count / SEGMENT))
    for part in range(parts):
        yield count * part // parts, count * (part + 1) // parts


def _bin(edges: FloatArray, at_s: float) -> int:
    return int(np.clip(np.searchsorted(edges, at_s, "right") - 1, 0, len(edges) - 2))


def _even_edges(demands: Sequence[Demand], bins: int | None) -> FloatArray:
    """Edges of bins of equal length, from the first arrival to the last deadline."""
    dues = [d.due_s for d in demands if d.due_s < math.inf]
    dues += [d.slo.ttft_s for d in demands if d.slo.ttft_s < math.inf]
    if not dues:
        return np.array([0.0, 1.0])
    start_s = min(d.arrival_s for d in demands)
    end_s = max(
        d.arrival_s + (d.due_s if d.due_s < math.inf else min(d.slo.ttft_s, 1e9)) for d in demands
    )
    if bins is None:
        segments = len(list(_segments(len(demands))))
        wanted = math.ceil((end_s - start_s) / float(np.median(dues)))
        bins = min(max(wanted, MIN_BINS), MAX_BINS_PER_SEGMENT * segments)
    return np.linspace(start_s, end_s, bins + 1)


def _event_edges(plans: Plans) -> FloatArray:
    """Every time at which a piece of work begins or has to end."""
    times = {t for _, piece in plans.pieces for t in (piece.start_s, piece.end_s)}
    return np.array(sorted(times)) if len(times) > 1 else np.array([0.0, 1.0])
