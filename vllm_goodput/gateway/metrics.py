# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""Prometheus metrics of the gateway, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vllm_goodput.gateway.prefix_metrics import PrefixMetrics
from vllm_goodput.instance.metrics import InstanceMetrics
from vllm_goodput.router.instance import InstanceState

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """Counters, histograms and, read at scrape time, one gauge set per instance."""

    def __init__(self, instances: Callable[[], Iterable[InstanceState]]) -> None:
        self.registry = CollectorRegistry()
        self.slo = InstanceMetrics(self.registry)
        self.prefix = PrefixMetrics(self.registry)
        self.rejected = Counter(
            "goodput_rejected", "Rejected requests by reason.", ["reason"], registry=self.registry
        )
        self.retries = Counter(
            "goodput_retries",
            "Attempts repeated on another instance, by the instance that failed.",
            ["instance"],
            registry=self.registry,
        )
        self.open = Gauge("goodput_open_requests", "Requests open now.", registry=self.registry)
        self.held = Gauge("goodput_held_requests", "Requests held now.", registry=self.registry)
        self.ttft = self._seconds("goodput_ttft_seconds", "Time to first token.")
        self.e2el = self._seconds("goodput_e2el_seconds", "End-to-end latency.")
        self.error = Histogram(
            "goodput_predicted_e2el_ratio",
            "Predicted over measured end-to-end latency after dispatch.",
            ["instance"],
            buckets=(0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4),
            registry=self.registry,
        )
        self.lengths = Counter(
            "goodput_output_lengths",
            "Answers whose length was predicted.",
            ["task"],
            registry=self.registry,
        )
        self.lengths_within = Counter(
            "goodput_output_lengths_within",
            "Answers no longer than the predicted quantile of this level.",
            ["task", "level"],
            registry=self.registry,
        )
        self.predictor_failures = self._counter(
            "goodput_predictor_failures",
            "Requests that the length predictor failed on; a histogram stood in.",
        )
        self.swaps = self._counter(
            "goodput_predictor_swaps", "Length models that replaced the running one."
        )
        self.swap_failures = self._counter(
            "goodput_predictor_swap_failures", "Changed model files that could not be loaded."
        )
        self.log_dropped = self._counter(
            "goodput_training_log_dropped", "Finished requests missing from the training log."
        )
        self._loaded = Gauge(
            "goodput_predictor_loaded_timestamp_seconds",
            "When the running length predictor was loaded, Unix time.",
            ["kind", "model"],
            registry=self.registry,
        )
        self.registry.register(_Instances(instances))

    def predictor_loaded(self, kind: str, model: str | None) -> None:
        """A predictor of this kind runs from now on; `model` is its file, if it is not the package's own."""
        self._loaded.labels(kind, model or "").set_to_current_time()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ["instance"], buckets=SECONDS, registry=self.registry)


class _Instances(Collector):
    """Gauges of every instance, read when scraped."""

    GAUGES = (
        ("goodput_instance_healthy", "1 if the instance takes requests."),
        ("goodput_instance_running", "Requests in flight on the instance."),
        ("goodput_instance_decode_seconds", "d(1): seconds per output token, one sequence."),
        ("goodput_instance_prefill_token_seconds", "p: seconds per prompt token."),
    )

    def __init__(self, instances: Callable[[], Iterable[InstanceState]]) -> None:
        self._instances = instances

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        families = [GaugeMetricFamily(n, text, labels=["instance"]) for n, text in self.GAUGES]
        for state in self._instances():
            values = (
                float(state.healthy),
                float(state.in_flight),
                state.speed.decode_step_s(1),
                state.speed.prefill_token_s(),
            )
            for family, value in zip(families, values, strict=True):
                family.add_metric([state.name], value)
        yield from families
