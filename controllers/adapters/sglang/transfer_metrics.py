"""Counts the copies between device and host under the names of SGLang's own metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from unified_tree.controllers.cache.metric_aliases import SGLANG_POOLS
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.counters.observers import OBSERVER_FAILED
from unified_tree.inputs.printable import traceback_of
from unified_tree.nodes.effect import EffectKind

LOG = logging.getLogger(__name__)


class MeteredCounters(CacheCounters):
    """Counters that also tell SGLang's collector of every copy that ended.

    Args:
        collector: SGLang's `RadixCacheMetricsCollector`.
        page_size: tokens a page; a state counts as one, as in SGLang.
    """

    def __init__(self, collector: Any, page_size: int) -> None:
        super().__init__()
        for kind, counters in self.transfers.items():
            counters.meter = partial(self._meter, collector, page_size, kind)

    def _meter(self, collector: Any, page_size: int, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
        try:
            _count(collector, page_size, kind, pages, size_bytes)
        except Exception as error:  # of files, which SGLang's processes share their metrics by
            for counters in self.transfers.values():
                counters.meter = None
            LOG.error("SGLang's collector raised, and is told of no more copies: %s", traceback_of(error))
            self.count_drop(OBSERVER_FAILED)


def _count(collector: Any, page_size: int, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
    """Tell the collector of a copy, pages by component."""
    name = "backup" if kind is EffectKind.BACKUP else "load_back"
    for component, count in pages.items():
        tokens = count * (1 if component == "mamba" else page_size)
        getattr(collector, f"increment_{name}_num_tokens")(num_tokens=tokens, pool=SGLANG_POOLS.get(component, component))
    getattr(collector, f"increment_{name}_num_bytes")(size_bytes)
