"""The parts of a cache that its leases share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.cache.layout import CacheLayout
    from unified_tree.controllers.cache.stats import CacheCounters
    from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
    from unified_tree.controllers.host.tier_pages import TierPages
    from unified_tree.tree import UnifiedTree


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheResources:
    """The parts of a cache that its leases share.

    Attributes:
        tree: what is cached.
        layout: which components have pages of their own.
        device: the device pools.
        controller: moves state between device and host; None without a host tier.
        counters: counts events.
        draft_tokens: see PrefixCache.
    """

    tree: UnifiedTree
    layout: CacheLayout
    device: TierPages
    controller: HybridCacheController | None
    counters: CacheCounters
    draft_tokens: int
