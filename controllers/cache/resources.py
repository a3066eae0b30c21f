"""The parts of a cache that its leases share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.cache.layout import CacheLayout
    from unified_tree.controllers.cache.miss_ledger import MissLedger
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
    from unified_tree.controllers.pages.tier_pages import TierPages
    from unified_tree.memory.ages import Ages
    from unified_tree.tree import UnifiedTree


class CacheResources:
    """The parts of a cache that its leases share.

    Attributes:
        tree: what is cached; `state` and `locks` are its own.
        layout: which components have pages of their own.
        device: the device pools.
        controller: moves state between device and host; None without a host tier.
        counters: counts events.
        ledger: books why tokens had to be computed.
        draft_tokens: see PrefixCache.
    """

    __slots__ = ("controller", "counters", "device", "draft_tokens", "layout", "ledger", "locks", "state", "tree")

    def __init__(
        self,
        *,
        tree: UnifiedTree,
        layout: CacheLayout,
        device: TierPages,
        controller: HybridCacheController | None,
        counters: CacheCounters,
        ledger: MissLedger,
        draft_tokens: int,
    ) -> None:
        self.tree = tree
        self.state = tree.state
        self.locks = tree.locks
        self.layout = layout
        self.device = device
        self.controller = controller
        self.counters = counters
        self.ledger = ledger
        self.draft_tokens = draft_tokens

    def at_once(self, namespace: str) -> Ages | None:
        """As `note_beneficiary`, for a call that happens at one time, which its end tells: `Ages.let_go`. None without ages."""
        self.note_beneficiary(namespace)
        ages = self.state.ages
        if ages is not None:
            ages.hold()
        return ages

    def note_beneficiary(self, namespace: str | None) -> None:
        """What is evicted from now on makes room for a namespace; None for nobody."""
        ghosts = self.state.ghosts
        if ghosts is not None:
            ghosts.beneficiary = namespace
