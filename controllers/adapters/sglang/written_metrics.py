"""Writes metrics under the names of `PrefixCache`'s among SGLang's Prometheus metrics, from time to time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from unified_tree.controllers.cache.metrics import CacheCollector


class WrittenMetrics:
    """Counters and gauges of one cache. SGLang's processes share their metrics by files, so they are written, and not collected
    when they are scraped. Histograms are left out.

    Args:
        labels: SGLang's, put on every sample.
        interval_s: between two times that the figures are written.
        clock: seconds.

    Attributes:
        families: makes them of figures.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        interval_s: float,
        clock: Callable[[], float],
        registry: CollectorRegistry | None = REGISTRY,
    ) -> None:
        self.families = CacheCollector(_no_stats, labels)
        self._interval_s = interval_s
        self._clock = clock
        self._registry = registry
        self._next_s = clock()
        self._metrics: dict[str, Any] = {}
        self._told: dict[tuple[str, tuple[str, ...]], float] = {}
        self._gauges: set[tuple[str, tuple[str, ...]]] = set()

    @property
    def is_due(self) -> bool:
        """Whether the figures were not written for the interval. Cost: O(1)."""
        return self._clock() >= self._next_s

    def write(self, families: Iterable[Metric]) -> None:
        """Write the figures of now."""
        self._next_s = self._clock() + self._interval_s
        for family in families:
            if isinstance(family, CounterMetricFamily):
                for labels, value in samples_of(family):
                    before = self._told.get((family.name, labels), 0.0)
                    metric = self._metric(Counter, family)
                    (metric.labels(*labels) if labels else metric).inc(max(0.0, value - before))
                    self._told[family.name, labels] = value
            elif isinstance(family, GaugeMetricFamily):
                for labels, value in samples_of(family):
                    metric = self._metric(Gauge, family, multiprocess_mode="mostrecent")
                    (metric.labels(*labels) if labels else metric).set(value)
                    self._gauges.add((family.name, labels))

    def _metric(self, kind: Any, family: CounterMetricFamily | GaugeMetricFamily, **options: Any) -> Any:
        metric = self._metrics.get(family.name)
        if metric is None:
            names = tuple(family.samples[0].labels)
            metric = kind(family.name, family.documentation, names, registry=self._registry, **options)
            self._metrics[family.name] = metric
        return metric


def samples_of(family: CounterMetricFamily | GaugeMetricFamily) -> list[tuple[tuple[str, ...], float]]:
    """The values of a family, by those of its labels."""
    return [(tuple(sample.labels.values()), sample.value) for sample in family.samples]


def _no_stats() -> Any:
    raise AssertionError("families are made of figures that are given")
