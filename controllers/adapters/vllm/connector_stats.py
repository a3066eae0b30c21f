"""The connector's counters in vLLM's log and among its Prometheus metrics."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any, Final

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS: Final = {
    "prompt_tokens": "Tokens of the prompts whose misses are counted by cause",
    "hit_tokens": "Tokens for which the host tier had a hit that vLLM took",
    "loaded_tokens": "Tokens loaded from the host tier",
    "loads": "Loads from the host tier",
    "failed_loads": "Loads that failed on some worker",
    "lost_loads": "Loads whose pages had gone when vLLM told their blocks",
    "kept_sleeps": "Sleeps over which the host tier was kept",
    "ended_sessions": "Sessions that have ended, or were unused for longest when too many were open",
    "saves": "Saves to the host tier",
    "saved_pages": "Pages saved to the host tier",
    "dropped_saves": "Saves for which the host tier had no room",
    "discarded_saves": "Saves that ended too late or failed",
    "evicted_pages": "Pages evicted from the host tier",
    "fetched_tokens": "Tokens by which prefixes on host grew from the store",
    "fetched_pages": "Pages read from the store",
    "stored_pages": "Pages written to the store, over all workers",
    "dropped_stores": "Fetches and writes that the store, or the room for them, did not allow",
    "store_errors": "Failed calls of the store, and pages that its faults concern, corrupt ones too, over all workers",
    "save_bytes": "Bytes copied to host, over all workers",
    "save_seconds": "Seconds spent copying to host, over all workers",
    "load_bytes": "Bytes copied from host, over all workers",
    "load_seconds": "Seconds spent copying from host, over all workers",
}

BY_LABEL: Final = {
    "miss_tokens": (("cause",), "Tokens that vLLM computed, by cause"),
    "evicted_miss_tokens": (("component",), "Of these the evicted ones, by the component whose host pool was short"),
    "hints": (("verb", "outcome"), "Hints that have ended, by what they asked for"),
    "tenant_hints": (("verb", "outcome", "group"), "Hints that have ended, by group of namespaces and by what they asked for"),
}
"""Counters with labels, whose values stand behind a `/` each in the names of `ConnectorStats`. The last may have some, too."""


class ConnectorStats(KVConnectorStats):  # type: ignore[misc, unused-ignore]
    """The counters of one interval, by name."""

    def reset(self) -> None:
        """Begin a new interval."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another worker's, or a later interval's."""
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        """What the log prints."""
        return {name: round(count, 3) for name, count in self.data.items()}

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data


class ConnectorMetrics(KVConnectorPromMetrics):  # type: ignore[misc, unused-ignore]
    """The same as Prometheus counters `vllm:unified_tree_…_total`, one an engine."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], labelvalues: dict[int, list[object]]
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, labelvalues)
        self._counters: dict[str, dict[int, Counter]] = {}
        for name, text in COUNTERS.items():
            counter = self._counter_cls(name=f"vllm:unified_tree_{name}", documentation=text, labelnames=labelnames)
            self._counters[name] = {engine: counter.labels(*values) for engine, values in labelvalues.items()}

        self._by_label: dict[str, Counter] = {}
        self._labels = labelvalues
        for name, (own, text) in BY_LABEL.items():
            self._by_label[name] = self._counter_cls(
                name=f"vllm:unified_tree_{name}", documentation=text, labelnames=[*labelnames, *own]
            )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count an interval."""
        for name, count in transfer_stats_data.items():
            name, *given = name.split("/", 1)
            if given:
                own = given[0].split("/", len(BY_LABEL[name][0]) - 1)
                self._by_label[name].labels(*self._labels[engine_idx], *own).inc(count)
            else:
                self._counters[name][engine_idx].inc(count)
