# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Metrics of the prefix index: predicted hits, held against what instances report, and the KV events that came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_goodput.gateway.kv_events import KvEventWatch


class PrefixMetrics:
    """Counts tokens of finished requests, by instance.

    Args:
        registry: of the gateway.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._prompt = Counter(
            "goodput_prompt_tokens",
            "Prompt tokens of finished requests.",
            ["instance"],
            registry=registry,
        )
        self._predicted = Counter(
            "goodput_prefix_hit_tokens",
            "Prompt tokens of finished requests that were predicted to be in the prefix cache.",
            ["instance"],
            registry=registry,
        )
        self._compared = Counter(
            "goodput_prefix_compared_tokens",
            "Where usage told cached_tokens: prompt tokens predicted, cached, and the difference of the two (error).",
            ["instance", "kind"],
            registry=registry,
        )

    def finished(
        self, instance: str, prompt_len: int, predicted: float | None, cached_len: int | None
    ) -> None:
        """A request finished.

        Args:
            instance: where.
            prompt_len: tokens of its prompt.
            predicted: those expected in the prefix cache; None if nothing was predicted.
            cached_len: those that were; None if the instance did not tell.
        """
        self._prompt.labels(instance).inc(prompt_len)
        if predicted is None:
            return
        self._predicted.labels(instance).inc(predicted)
        if cached_len is not None:
            self._compared.labels(instance, "predicted").inc(predicted)
            self._compared.labels(instance, "cached").inc(cached_len)
            self._compared.labels(instance, "error").inc(abs(predicted - cached_len))


class KvEventMetrics(Collector):
    """Counters of every instance's KV events, read when scraped; they begin anew when the instance joins again.

    Args:
        watches: by instance.
    """

    def __init__(self, watches: Callable[[], Iterable[tuple[str, KvEventWatch]]]) -> None:
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        events = CounterMetricFamily(
            "goodput_kv_events",
            "KV events: messages (batches), blocks stored, removed and without keys (unkeyed), caches cleared, gaps, "
            "those repaired, restarts, malformed messages.",
            labels=["instance", "kind"],
        )
        blocks = GaugeMetricFamily(
            "goodput_kv_event_blocks",
            "Blocks that the instance is known to hold from its KV events.",
            labels=["instance"],
        )
        for instance, watch in self._watches():
            for kind, count in asdict(watch.counters).items():
                events.add_metric([instance, kind], count)
            blocks.add_metric([instance], watch.blocks)
        yield from (events, blocks)
