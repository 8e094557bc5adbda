# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""A sink of KV events that keeps an index of one instance, as the gateway does."""

from __future__ import annotations

from vllm_goodput._C import PrefixIndex


class Indexed:
    """What the instance 0 holds."""

    def __init__(self, capacity_blocks: int = 1000) -> None:
        self.index = PrefixIndex()
        self.index.add_instance(0, capacity_blocks)
        self.cleared_times = 0

    def stored(self, instance, hashes, parent) -> None:
        if parent is None:
            self.index.insert(0, hashes)
        else:
            self.index.extend(0, parent, hashes)

    def removed(self, instance, hashes) -> None:
        self.index.evict(0, hashes)

    def lost(self, instance) -> None:
        self.index.clear_instance(0)

    def cleared(self, instance) -> None:
        self.cleared_times += 1
        self.index.clear_instance(0)
