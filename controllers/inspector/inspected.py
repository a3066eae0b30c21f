"""A cache as an inspector reads it: a PrefixCache, or one that lives inside an engine (`EngineCache`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.miss_ledger import MissLedger
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.pages.tier_pages import FreePages
    from unified_tree.controllers.storage_tier import StorageController
    from unified_tree.tree import UnifiedTree

    Inspected: TypeAlias = "PrefixCache | EngineCache"
    """One cache. It belongs to one thread, which alone reads it."""


class Pools(Protocol):
    """The page pools of one tier."""

    @property
    def allocators(self) -> Mapping[str, FreePages]:
        """The free list of each pool, by component."""
        ...


class WithHost(Protocol):
    """What has a host tier."""

    @property
    def host(self) -> Pools:
        """Its pools."""
        ...


class NoPools:
    """The pools of a tier that the engine keeps itself."""

    def __init__(self) -> None:
        self.allocators: dict[str, FreePages] = {}


class EngineCache:
    """The cache of an adapter, as a PrefixCache shows its own. The engine keeps the running requests: there are no leases.

    Args:
        counters, ledger: for the whole life of the engine.

    Attributes:
        tree: what is cached.
        counters: its totals, and who is told what it does.
        ledger: why tokens had to be computed.
        device: the pools on device; `controller` what moves pages between these and host, None without a host tier.
        storage: the store behind the host tier; None without one, or where an engine's workers keep it.
        rebuild: whether a request may resume from a rebuilt window.
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
