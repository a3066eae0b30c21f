"""Who is told what a cache does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.effect import EffectKind
    from unified_tree.keys import Key
    from unified_tree.node import Tier
    from unified_tree.receipt import EvictResult


class CacheWatcher(Protocol):
    """Is told what a cache does, in the cache's thread; `CacheCounters.watcher` is one. It must not change the cache."""

    def acquired(self, lease: Lease, key: Key) -> None:
        """A request got a lease."""

    def load_failed(self, lease: Lease, tokens: int) -> None:
        """What a request was to load has not come, so these of its hits are computed after all."""

    def invalidated(self, namespace: str | None) -> None:
        """The weights of a namespace, or of all, have changed, or its state was given up otherwise."""

    def evicted(self, tier: Tier, component: str, result: EvictResult) -> None:
        """Values were evicted because a pool was short."""

    def moved(self, kind: EffectKind, pages: Mapping[str, int], size_bytes: int) -> None:
        """A copy between device and host has ended well."""

    def polled(self) -> None:
        """The cache was polled, as it is once a scheduler step."""
