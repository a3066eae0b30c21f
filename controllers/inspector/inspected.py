"""What an inspector reads of a cache: of a PrefixCache, or of one that lives inside an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.miss_ledger import MissLedger
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.pages.tier_pages import FreePages
    from unified_tree.controllers.storage_tier import StorageController
    from unified_tree.tree import UnifiedTree


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


class Inspected(Protocol):
    """One cache. It belongs to one thread, which alone reads it."""

    @property
    def tree(self) -> UnifiedTree:
        """What is cached."""
        ...

    @property
    def counters(self) -> CacheCounters:
        """Its totals, and who is told what it does."""
        ...

    @property
    def ledger(self) -> MissLedger:
        """Why tokens had to be computed."""
        ...

    @property
    def device(self) -> Pools:
        """The pools on device."""
        ...

    @property
    def controller(self) -> WithHost | None:
        """What moves pages between device and host; None without a host tier."""
        ...

    @property
    def storage(self) -> StorageController | None:
        """The store behind the host tier; None without one, or where an engine's workers keep it."""
        ...

    @property
    def leases(self) -> Sequence[Lease]:
        """The requests that hold pages; none where an engine keeps them itself."""
        ...

    @property
    def lease_count(self) -> int:
        """How many these are."""
        ...

    @property
    def rebuild(self) -> bool:
        """Whether a request may resume from a rebuilt window."""
        ...
