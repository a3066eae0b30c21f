"""Exports what a store has done, and failed to do, among SGLang's Prometheus metrics, under the names of `PrefixCache`'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from unified_tree.controllers.cache.metrics import PREFIX, CacheCollector

if TYPE_CHECKING:
    from unified_tree.controllers.storage_tier import StorageTierStats

DEGRADED = f"{PREFIX}storage_degraded"


class StoreMetrics:
    """Counters and gauges of one cache's store. SGLang's processes share their metrics by files, so they are written, and not
    collected when they are scraped. Histograms are left out.

    Args:
        labels: SGLang's, put on every sample.
        interval_s: between two times that the figures are written.
        clock: seconds.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        interval_s: float,
        clock: Callable[[], float],
        registry: CollectorRegistry | None = REGISTRY,
    ) -> None:
        self._families = CacheCollector(_no_stats, labels)
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

    def tell(self, drops: Mapping[str, int], figures: StorageTierStats | None) -> None:
        """Write the figures of now.

        Args:
            drops: what was dropped so far, by reason.
            figures: of the store; None for none.
        """
        self._next_s = self._clock() + self._interval_s
        for family in (self._families.drops(drops), *(() if figures is None else self._families.storage(figures))):
            if isinstance(family, CounterMetricFamily):
                for labels, value in _samples(family):
                    before = self._told.get((family.name, labels), 0.0)
                    metric = self._metric(Counter, family)
                    (metric.labels(*labels) if labels else metric).inc(max(0.0, value - before))
                    self._told[family.name, labels] = value
            elif isinstance(family, GaugeMetricFamily):
                for labels, value in _samples(family):
                    metric = self._metric(Gauge, family, multiprocess_mode="mostrecent")
                    (metric.labels(*labels) if labels else metric).set(value)
                    self._gauges.add((family.name, labels))

    def opened(self, figures: StorageTierStats) -> None:
        """A store is used from now on: what its engine has counted before was told, or is not this server's."""
        for family in self._families.storage(figures):
            if isinstance(family, CounterMetricFamily):
                for labels, value in _samples(family):
                    self._told[family.name, labels] = value

    def closed(self) -> None:
        """The store is not used any more: every gauge is 0, but `storage_degraded` is 1."""
        for family, labels in self._gauges:
            metric = self._metrics[family]
            (metric.labels(*labels) if labels else metric).set(float(family == DEGRADED))

    def _metric(self, kind: Any, family: CounterMetricFamily | GaugeMetricFamily, **options: Any) -> Any:
        metric = self._metrics.get(family.name)
        if metric is None:
            names = tuple(family.samples[0].labels)
            metric = kind(family.name, family.documentation, names, registry=self._registry, **options)
            self._metrics[family.name] = metric
        return metric


def _samples(family: CounterMetricFamily | GaugeMetricFamily) -> list[tuple[tuple[str, ...], float]]:
    """The values of a family, by those of its labels."""
    return [(tuple(sample.labels.values()), sample.value) for sample in family.samples]


def _no_stats() -> Any:
    raise AssertionError("families are made of figures that are given")
