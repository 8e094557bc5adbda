# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""The policy `global`: requests that wait at the same time are assigned together, over a rolling horizon.

Every request waits a short horizon, in which others may come. When it asks again, all that wait are assigned to the
pool's instances at once, so that the sum of their expected gains (those of `goodput`) is greatest (Hungarian method);
it goes where it is assigned, and waits on if it is not. So a scarce place goes to whom it helps most, not to who asked
first. Costs the horizon in latency, and time that grows with the pool; meant for pools of tens of instances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.policies.goodput import MAX_HOLD_S, Goodput, goes_anywhere
from vllm_goodput.router.query import Query
from vllm_goodput.router.types import Decision, Dispatch, Hold

HORIZON_S = 0.02
# Waiting requests that are assigned together at most, the most urgent ones; and places offered per instance.
MAX_TOGETHER = 32
PLACES = 2
# Instances whose gain is found exactly, those that are worth most without looking at harm.
LOOKS = 16


@dataclass(slots=True)
class _Waiting:
    """A request that was told to wait, with its gain on each slot when it last asked."""

    asked_s: float
    deadline_s: float
    gains: dict[int, float]


class Global(Goodput):
    """See the module's docstring."""

    name = "global"

    def __init__(self, config: RouterConfig) -> None:
        super().__init__(config)
        self._waiting: dict[str, _Waiting] = {}

    def decide(self, query: Query) -> Decision:
        """See Policy."""
        decision = super().decide(query)
        request_id, info = query.info.request_id, query.info
        if goes_anywhere(query) or not isinstance(decision, Dispatch):
            self._forget(request_id, query.now_s)
            return decision
        gains = self._gains(query)
        self._waiting[request_id] = _Waiting(query.now_s, info.deadline_s, gains)
        if query.now_s - info.arrival_s < HORIZON_S:
            return Hold(info.arrival_s + HORIZON_S)
        slot = self._assigned(request_id, query.now_s)
        if slot is None:
            return Hold(query.now_s + HORIZON_S)
        del self._waiting[request_id]
        return query.dispatch(query.candidates.slot.tolist().index(slot))

    def _gains(self, query: Query) -> dict[int, float]:
        """Expected gain by slot, where there is any."""
        worths, gains = self._choice.worths, self._choice.gains
        found = {}
        for k in np.argsort(-worths, kind="stable")[:LOOKS].tolist():
            if worths[k] > 0.0:
                known = float(gains[k])  # the choice has looked at some already
                gain = float(worths[k]) - query.harm(k) if math.isnan(known) else known
                found[query.candidates.slot_of(k)] = gain
        return {slot: gain for slot, gain in found.items() if gain > 0.0}

    def _assigned(self, request_id: str, now_s: float) -> int | None:
        """Where the request goes if all that wait are assigned together; None: not yet."""
        together = sorted(self._waiting.items(), key=lambda item: (item[1].deadline_s, item[0]))
        chosen = [item for item in together if item[0] == request_id]
        chosen += [item for item in together if item[0] != request_id][: MAX_TOGETHER - 1]
        slots = sorted({slot for _, waiting in chosen for slot in waiting.gains})
        gain = np.zeros((len(chosen), PLACES * len(slots)))
        for row, (_, waiting) in enumerate(chosen):
            for column, slot in enumerate(slots):
                gain[row, column * PLACES : (column + 1) * PLACES] = waiting.gains.get(slot, 0.0)
        return self._place_of_first(gain, slots)

    def _place_of_first(self, gain: npt.NDArray[np.float64], slots: list[int]) -> int | None:
        rows, columns = linear_sum_assignment(gain, maximize=True)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if row == 0 and gain[row, column] > 0.0:
                place: int = column // PLACES
                return slots[place]
        return None

    def _forget(self, request_id: str, now_s: float) -> None:
        """Drop a request that waits no longer, and those that have not asked for so long that they must have left."""
        self._waiting.pop(request_id, None)
        old = [name for name, w in self._waiting.items() if now_s - w.asked_s > 2 * MAX_HOLD_S]
        for name in old:
            del self._waiting[name]
