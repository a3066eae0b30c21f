"""The cache inside a serving engine, as an inspector reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.miss_ledger import MissLedger
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.inspector.inspected import Pools, WithHost
    from unified_tree.controllers.pages.tier_pages import FreePages
    from unified_tree.controllers.storage_tier import StorageController
    from unified_tree.tree import UnifiedTree


class NoPools:
    """The pools of a tier that the engine keeps itself."""

    def __init__(self) -> None:
        self.allocators: dict[str, FreePages] = {}


class EngineCache:
    """What an adapter has in its engine; see Inspected. The engine keeps the running requests, so there are no leases.

    Args:
        counters, ledger: for the whole life of the engine.
    """

    def __init__(self, counters: CacheCounters, ledger: MissLedger) -> None:
        self.counters = counters
        self.ledger = ledger
        self.leases: tuple[Lease, ...] = ()
        self.lease_count = 0
        self.rebuild = False
        self.tree: UnifiedTree
        self.device: Pools = NoPools()
        self.controller: WithHost | None = None
        self.storage: StorageController | None = None

    def follow(
        self,
        tree: UnifiedTree,
        device: Pools | None,
        controller: WithHost | None,
        storage: StorageController | None = None,
    ) -> EngineCache:
        """This is its tree from now on, with the pools of its tiers. Returns itself."""
        self.tree = tree
        self.device = NoPools() if device is None else device
        self.controller = controller
        self.storage = storage
        return self
