"""Counts the copies between device and host under the names of SGLang's own metrics."""

from __future__ import annotations

from typing import Any

from unified_tree.controllers.cache.metric_aliases import SGLANG_POOLS
from unified_tree.controllers.cache.stats import CacheCounters
from unified_tree.controllers.cache.transfer_counters import TransferCounters
from unified_tree.effect import EffectKind


class MeteredCounters(CacheCounters):
    """Counters that also tell SGLang's collector of every copy that ended.

    Args:
        collector: SGLang's `RadixCacheMetricsCollector`.
        page_size: tokens a page; a state counts as one, as in SGLang.
    """

    def __init__(self, collector: Any, page_size: int) -> None:
        super().__init__()
        self.transfers = {kind: MeteredTransferCounters(collector, page_size, kind) for kind in EffectKind}


class MeteredTransferCounters(TransferCounters):
    """The counters of one direction, which tell the collector."""

    def __init__(self, collector: Any, page_size: int, kind: EffectKind) -> None:
        super().__init__()
        self._collector = collector
        self._page_size = page_size
        self._name = "backup" if kind is EffectKind.BACKUP else "load_back"

    def add(self, pages: dict[str, int], size_bytes: int, took_s: float) -> None:
        """Count one copy, pages by component."""
        super().add(pages, size_bytes, took_s)
        for component, count in pages.items():
            tokens = count * (1 if component == "mamba" else self._page_size)
            getattr(self._collector, f"increment_{self._name}_num_tokens")(
                num_tokens=tokens, pool=SGLANG_POOLS.get(component, component)
            )
        getattr(self._collector, f"increment_{self._name}_num_bytes")(size_bytes)
