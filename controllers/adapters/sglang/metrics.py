"""Metrics under the names of `PrefixCache`'s, among SGLang's own Prometheus metrics.

SGLang's processes share their metrics by files, so a collector that reads the cache when it is scraped would not be seen: all
of these are written. SGLang says first where the files are, so this module is imported after it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from unified_tree.controllers.cache.metrics import PREFIX, CacheCollector
from unified_tree.controllers.counters.observers import OBSERVER_FAILED
from unified_tree.inputs.printable import printable, traceback_of
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.storage_tier import StorageTierStats
    from unified_tree.misses.causes import Miss

LOG = logging.getLogger(__name__)
DEGRADED = f"{PREFIX}storage_degraded"


class MissMetrics:
    """Counters of the hits and misses of one cache.

    Args:
        labels: SGLang's, put on every sample.
        components: names of the tree's.
    """

    def __init__(
        self, labels: Mapping[str, str], components: Sequence[str], registry: CollectorRegistry | None = REGISTRY
    ) -> None:
        self._labels = labels
        self._components = tuple(components)
        self._registry = registry
        self._requests = self._counter("requests", "requests admitted").labels(**labels)
        self._prompts = self._counter("prompt_tokens", "prompt tokens of those requests").labels(**labels)
        self._hits = self._counter("hit_tokens", "prompt tokens not computed again").labels(**labels)
        misses = self._counter("miss_tokens", "prompt tokens that were computed, by cause", "cause")
        self._misses = [misses.labels(**labels, cause=cause.label) for cause in MissCause]
        self._evicted = self._counter(
            "evicted_miss_tokens", "of those evicted, by the pool that was short", "component", "tier"
        )
        self._forgotten = self._counter("miss_memory_forgotten", "evicted prefixes that were forgotten").labels(**labels)
        self._details = self._counter("miss_detail_tokens", "of the missed, those of which more is known", "cause", "detail")

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"unified_tree_{name}", what, [*self._labels, *labels], registry=self._registry)

    def count(self, prompt_tokens: int, hit_tokens: int, misses: Iterable[Miss], forgotten: int = 0) -> None:
        """Count a request, and how many evicted prefixes were forgotten since the one before."""
        self._forgotten.inc(forgotten)
        self._requests.inc()
        self._prompts.inc(prompt_tokens)
        self._hits.inc(hit_tokens)
        for miss in misses:
            self._misses[miss.code].inc(miss.tokens)
            eviction = miss.eviction
            if eviction is not None:
                component, tier = self._components[eviction.component], eviction.tier.name.lower()
                self._evicted.labels(**self._labels, component=component, tier=tier).inc(miss.tokens)
            if miss.detail is not None and miss.code != MissCause.OTHER_NAMESPACE:  # namespaces are too many to be labels
                details = self._details.labels(**self._labels, cause=miss.cause.label, detail=printable(miss.detail))
                details.inc(miss.tokens)


class WrittenMetrics:
    """Counters and gauges of one cache, written from time to time. Histograms are left out.

    If a write fails, as it may to SGLang's files, nothing is written any more, and the log says why.

    Args:
        labels: SGLang's, put on every sample.
        interval_s: between two times that the figures are written.
        clock: seconds.
        counters: count the failure.

    Attributes:
        families: makes them of figures.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        interval_s: float,
        clock: Callable[[], float],
        counters: CacheCounters,
        registry: CollectorRegistry | None = REGISTRY,
    ) -> None:
        self._counters = counters
        self._has_failed = False
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
        """Whether the figures can be written, and were not for the interval. Cost: O(1)."""
        return not self._has_failed and self._clock() >= self._next_s

    def write(self, families: Iterable[Metric]) -> None:
        """Write the figures of now."""
        self._next_s = self._clock() + self._interval_s
        self._guard(lambda: self._write(families))

    def _guard(self, write: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            write()
        except Exception as error:
            self._has_failed = True
            LOG.error("SGLang's metrics failed, and %s writes no more: %s", type(self).__name__, traceback_of(error))
            self._counters.count_drop(OBSERVER_FAILED)

    def _write(self, families: Iterable[Metric]) -> None:
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


class StoreMetrics(WrittenMetrics):
    """Counters and gauges of one cache's store: what it has done, and failed to do."""

    def tell(self, drops: Mapping[str, int], figures: StorageTierStats | None) -> None:
        """Write the figures of now.

        Args:
            drops: what was dropped so far, by reason.
            figures: of the store; None for none.
        """
        self.write((self.families.drops(drops), *(() if figures is None else self.families.storage(figures))))

    def opened(self, figures: StorageTierStats) -> None:
        """A store is used from now on: what its engine has counted before was told, or is not this server's."""
        for family in self.families.storage(figures):
            if isinstance(family, CounterMetricFamily):
                for labels, value in samples_of(family):
                    self._told[family.name, labels] = value

    def closed(self) -> None:
        """The store is not used any more: every gauge is 0, but `storage_degraded` is 1."""
        self._guard(self._close)

    def _close(self) -> None:
        for family, labels in self._gauges:
            metric = self._metrics[family]
            (metric.labels(*labels) if labels else metric).set(float(family == DEGRADED))
