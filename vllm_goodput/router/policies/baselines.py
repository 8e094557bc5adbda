# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Baselines: greedy rules that hold nothing; each also in a variant that first drops what would miss its SLO."""

from __future__ import annotations

import random
from abc import abstractmethod

import numpy as np
import numpy.typing as npt

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.policies.base import Policy, explorable, nowhere, usable
from vllm_goodput.router.query import Query
from vllm_goodput.router.types import Decision

# prefix_affinity balances load instead while one instance has so many times the requests of another, and so many more.
IMBALANCE_RATIO, IMBALANCE_REQUESTS = 1.5, 8


class Greedy(Policy):
    """Takes the best candidate by some rule, whether or not the SLO can be met there."""

    rejecting = False

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        if self.rejecting and query.info.slo:
            allowed = np.flatnonzero(usable(query, self.config.margin))
            if not len(allowed):
                return nowhere(query)
        else:
            allowed = np.arange(len(query.candidates))
        return query.dispatch(self.choose(query, allowed))

    @abstractmethod
    def choose(self, query: Query, allowed: npt.NDArray[np.intp]) -> int:
        """Which of the candidates at the allowed indices (at least one)."""


class Scored(Greedy):
    """Takes the lowest score; the first among equals."""

    def choose(self, query: Query, allowed: npt.NDArray[np.intp]) -> int:
        """See Greedy."""
        return int(allowed[np.argmin(self.scores(query)[allowed])])

    @abstractmethod
    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """One number per candidate."""


class Random(Greedy):
    """Any, with equal chances."""

    name = "random"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._rng = random.Random(config.seed)

    def choose(self, query: Query, allowed: npt.NDArray[np.intp]) -> int:
        """See Greedy."""
        return int(self._rng.choice(allowed))


class RoundRobin(Greedy):
    """Each in turn."""

    name = "round_robin"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._next = 0

    def choose(self, query: Query, allowed: npt.NDArray[np.intp]) -> int:
        """See Greedy."""
        chosen = allowed[self._next % len(allowed)]
        self._next += 1
        return int(chosen)


class PowerOfTwo(Greedy):
    """Of two taken at random the one with fewer requests in flight (Mitzenmacher, 2001)."""

    name = "power_of_two"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._rng = random.Random(config.seed)

    def choose(self, query: Query, allowed: npt.NDArray[np.intp]) -> int:
        """See Greedy."""
        two = self._rng.sample(range(len(allowed)), min(2, len(allowed)))
        loads = query.candidates.in_flight
        return int(min(allowed[two], key=lambda k: loads[k]))


class LeastRequest(Scored):
    """Fewest requests in flight."""

    name = "least_request"

    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """See Scored."""
        return query.candidates.in_flight.astype(np.float64)


class LeastTokens(Scored):
    """Fewest tokens booked: prompts, and outputs as predicted."""

    name = "least_tokens"

    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """See Scored."""
        return query.candidates.booked_tokens


class WeightedLeastRequest(Scored):
    """Fewest requests in flight relative to measured speed.

    Speed is the inverse of the time this very request would take on the idle instance.
    """

    name = "weighted_least_request"

    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """See Scored."""
        c = query.candidates
        return np.asarray((c.in_flight + 1) * c.alone_s)


class Fastest(Scored):
    """Lowest predicted latency T; an instance never measured is tried first."""

    name = "fastest"

    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """See Scored."""
        c = query.candidates
        return np.where(explorable(query), -np.inf, c.queue_s + c.prefill_s + c.decode_s)


class ShortestPredicted(Scored):
    """Least predicted work: the tokens booked and the request's own, at the speed of the instance."""

    name = "shortest_predicted"

    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """See Scored."""
        c = query.candidates
        own = query.info.prompt_len + query.output_len
        return np.asarray((c.booked_tokens + own) * c.alone_s / own)


class PrefixAffinity(Scored):
    """Most of the prompt in the prefix cache, then fewest requests; fewest requests while loads are far apart."""

    name = "prefix_affinity"

    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """See Scored."""
        c = query.candidates
        load = c.in_flight.astype(np.float64)
        low, high = float(load.min()), float(load.max())
        if high - low > IMBALANCE_REQUESTS and high > IMBALANCE_RATIO * low:
            return load
        return np.asarray(load / (1.0 + high) - c.hit_tokens)


def rejecting(policy: type[Greedy]) -> type[Greedy]:
    """The variant of a greedy rule that chooses among the feasible only, and rejects what fits nowhere."""
    name = f"{policy.name}_reject"
    doc = f"{policy.name} among the instances that are predicted to meet the SLO; rejects what fits nowhere."
    return type(
        f"{policy.__name__}Reject", (policy,), {"name": name, "rejecting": True, "__doc__": doc}
    )


GREEDY: tuple[type[Greedy], ...] = (
    Random,
    RoundRobin,
    PowerOfTwo,
    LeastRequest,
    LeastTokens,
    WeightedLeastRequest,
    Fastest,
    ShortestPredicted,
    PrefixAffinity,
)
