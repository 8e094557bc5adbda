# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Which running requests should move to another instance (GoodServe, arXiv 2605.16867, risk monitor).

A move costs the target a prefill of the prompt and of everything generated, less what its prefix cache holds, so it
must raise the chance of meeting the SLO by more than a threshold. A request moves a limited number of times, and not
again soon after a move, so that nothing bounces between instances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vllm_goodput.config import RouterConfig
from vllm_goodput.router.types import Migration

if TYPE_CHECKING:
    from vllm_goodput.router.router import Router


class DeadlineRectifier:
    """Moves requests that are likely to miss their SLO to where they are likely to meet it.

    Args:
        config: `migration` holds thresholds and limits.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._settings = config.migration

    def moves(self, router: Router, now_s: float) -> list[Migration]:
        """At most one move to each instance, those that gain most first."""
        found = [
            move
            for name in list(router.instances)
            for request_id, handle in router.open_on(name)
            if (move := self._move(router, name, request_id, handle, now_s)) is not None
        ]
        found.sort(key=lambda move: (-move.gain, move.request_id))
        taken: set[str] = set()
        chosen = []
        for move in found:
            if move.dispatch.instance not in taken:
                taken.add(move.dispatch.instance)
                chosen.append(move)
        return chosen

    def _move(
        self, router: Router, name: str, request_id: str, handle: int, now_s: float
    ) -> Migration | None:
        settings, pool = self._settings, router.pool
        stay = pool.chance_to_stay(handle, now_s)
        if stay > settings.endangered_below:
            return None
        booking = pool.booking(handle)
        last_s = max(booking.moved_s, booking.dispatched_s)
        if booking.moves >= settings.max_moves or now_s - last_s < settings.cooldown_s:
            return None
        generated = int(booking.tokens)
        query = router.query_move(request_id, generated, now_s + settings.transfer_s)
        if query is None:
            return None
        gain = query.chances(self._config.margin) - stay
        for k in np.argsort(-gain, kind="stable").tolist():
            if gain[k] < settings.min_gain:
                return None
            net = float(gain[k]) - query.harm(k)
            if net >= settings.min_gain:
                return Migration(request_id, name, query.dispatch(k), generated, net)
        return None
