# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Load balancing with migration, after Llumnix (Sun et al., OSDI 2024): even loads, no deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vllm_goodput.router.policies.baselines import Scored
from vllm_goodput.router.query import Query
from vllm_goodput.router.types import Migration

if TYPE_CHECKING:
    from vllm_goodput.router.router import Router

# Requests move while the busiest instance's load exceeds the idlest's by so much.
MIN_DIFFERENCE = 0.25


class Llumnix(Scored):
    """Lowest load (requests in flight / max_num_seqs); requests move from the busiest to the idlest instance."""

    name = "llumnix"

    def scores(self, query: Query) -> npt.NDArray[np.float64]:
        """See Scored."""
        c = query.candidates
        return np.asarray(c.in_flight / c.limit)

    def rectify(self, router: Router, now_s: float) -> list[Migration]:
        """See Policy. One move per call, of the request that was dispatched last."""
        loads = {
            name: state.in_flight / state.limit
            for name, state in router.instances.items()
            if state.healthy
        }
        if len(loads) < 2:
            return []
        busy = max(loads, key=lambda name: loads[name])
        if loads[busy] - min(loads.values()) < MIN_DIFFERENCE:
            return []
        settings = self.config.migration
        for request_id, handle in reversed(router.open_on(busy)):
            booking = router.pool.booking(handle)
            if booking.moves >= settings.max_moves:
                continue
            generated = int(booking.tokens)
            query = router.query_move(request_id, generated, now_s + settings.transfer_s)
            if query is None:
                continue
            target = self.choose(query, np.arange(len(query.candidates)))
            return [Migration(request_id, busy, query.dispatch(target), generated, 0.0)]
        return []
