"""Exports what a store has done, and failed to do, among SGLang's Prometheus metrics, under the names of `PrefixCache`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily

from unified_tree.controllers.adapters.sglang.written_metrics import WrittenMetrics, samples_of
from unified_tree.controllers.cache.metrics import PREFIX

if TYPE_CHECKING:
    from unified_tree.controllers.storage_tier import StorageTierStats

DEGRADED = f"{PREFIX}storage_degraded"


class StoreMetrics(WrittenMetrics):
    """Counters and gauges of one cache's store."""

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
        for family, labels in self._gauges:
            metric = self._metrics[family]
            (metric.labels(*labels) if labels else metric).set(float(family == DEGRADED))
