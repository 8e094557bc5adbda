# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Prometheus metrics of one instance; they appear on vLLM's own /metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter

MAX_TASKS = 64


class InstanceMetrics:
    """Counters of SLO outcomes, labelled by task. Client-chosen task names beyond 64 are counted as `other`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = Counter(
            "goodput_requests",
            "Requests by outcome: met, missed (an SLO), rejected, invalid (4xx), failed, aborted (client left).",
            ["task", "outcome"],
            registry=registry,
        )
        self.missed = Counter(
            "goodput_slo_missed",
            "Finished requests that missed an objective, by metric (ttft, tpot, e2el).",
            ["task", "metric"],
            registry=registry,
        )
        self._tasks: set[str] = set()

    def task_label(self, task: str | None) -> str:
        """A label of bounded cardinality for a task name."""
        if task is None:
            return "none"
        if task not in self._tasks:
            if len(self._tasks) >= MAX_TASKS:
                return "other"
            self._tasks.add(task)
        return task
