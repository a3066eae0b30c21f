"""Counts hits and misses among SGLang's own Prometheus metrics, under the names of `PrefixCache`'s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter

from unified_tree.inputs.printable import printable
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from unified_tree.misses.causes import Miss


class MissMetrics:
    """Counters of one cache. SGLang's processes share their metrics by files, so a collector that reads the cache when it is
    scraped would not be seen.

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
