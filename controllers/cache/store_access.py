"""The store behind a cache: attaching and detaching one, and fetching from it what an arrived prompt will need."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.storage_tier import StorageController, StorageTier
    from unified_tree.controllers.weights.weights import Weights
    from unified_tree.declare.keys import Key
    from unified_tree.tree import UnifiedTree


class StoreAccess:
    """The calls of a PrefixCache that concern the store behind its host tier. Without a store the others have no effect.

    Attributes:
        tree, counters, ranks, weights: the cache's.
        controller: moves pages between device and host; None without a host tier.
        storage: moves pages between host and store; None without a store.
    """

    tree: UnifiedTree
    counters: CacheCounters
    ranks: RankAgreement
    weights: Weights
    controller: HybridCacheController | None
    storage: StorageController | None

    def attach_storage(self, tier: StorageTier) -> None:
        """Put a store behind the host tier, or replace the current one. Leases are not affected.

        Raises ConfigurationError, with nothing changed, without a host tier, for a store that cannot keep these components, and
        for one that was not opened for all their pools. Replacing a store blocks as `detach_storage`.
        """
        from unified_tree.controllers.storage_tier import StorageController, StorageTier

        if not isinstance(tier, StorageTier):
            raise ConfigurationError(f"storage must be a StorageTier, not {tier!r}")
        if self.controller is None:
            raise ConfigurationError("a store needs a host tier before it: pass `host`, too")
        if self.storage is not None and self.storage.tier is tier:
            raise ConfigurationError("this store is attached already; to attach it anew would close its engine")
        attached = StorageController(self.tree, self.controller.host, tier, self.counters, self.weights, self.ranks)
        self.detach_storage()
        self.weights.attached(tier.weights_version)
        self.storage = self.controller.storage = attached

    def detach_storage(self) -> None:
        """Detach the store: prefetches and writes to it are cancelled, and the engine is closed. No effect without a store.

        Blocks until the store's running calls have returned. The store is detached even if closing it raises.
        """
        if self.storage is not None:
            assert self.controller is not None
            storage, self.storage = self.storage, None
            self.controller.storage = None
            storage.close()

    def prefetch(self, request: Hashable, key: Key) -> bool:
        """Start to fetch from the store to host what it has of an arrived prompt, at most its length less one token.

        Args:
            request: any name, for `prefetched`, `cancel` and `acquire`. A request has one prefetch; a new one replaces it.

        Returns whether there is something to wait for. Never blocks. A request that never calls again needs no cleanup: its
        prefetch ends by itself, and its outcome is forgotten later. Raises RankError, with nothing started, if ranks are gone.
        Cost: as a match.
        """
        return self.storage is not None and self.storage.prefetch(request, key)

    def prefetched(self, request: Hashable) -> bool:
        """Whether a request should call `acquire` now: its prefetch has ended, or by policy it waits no longer.

        If not, ask again after the next `poll`. Cost: O(1).
        """
        return self.storage is None or self.storage.prefetcher.requests.is_ready(request)

    def prefetched_tokens(self, request: Hashable) -> int:
        """How many tokens a request's prefetch has added to its prefix on host. 0 after `acquire`, and after more than
        `PrefetchPolicy.max_outcomes` later prefetches have ended. Cost: O(1).
        """
        return 0 if self.storage is None else self.storage.prefetcher.requests.tokens_of(request)

    def cancel(self, request: Hashable) -> None:
        """Cancel the prefetch of a request. No effect for an unknown one. Cost: O(1)."""
        if self.storage is not None:
            self.storage.prefetcher.requests.cancel(request)
