"""The storage controller: what a cache has behind its host tier, from the day a store is attached until it is detached.

Everything that touches the tree happens in the caller's calls; jobs touch the store and the host pages they were given, which
are pinned or belong to nobody else. What comes from the store is verified before it can be used (`CheckedStorage`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from unified_tree.component import Path
from unified_tree.controllers.storage.checked_storage import CheckedStorage
from unified_tree.controllers.storage.key_chain import KeyChain
from unified_tree.controllers.storage.stored_pool import check_can_hold, check_opened_for
from unified_tree.controllers.storage_tier.persist_queue import PersistQueue
from unified_tree.controllers.storage_tier.prefetching import Prefetching
from unified_tree.controllers.storage_tier.storage_tier_stats import StorageTierStats
from unified_tree.controllers.storage_tier.stored_composition import StoredComposition
from unified_tree.controllers.storage_tier.stored_memory import StoredMemory

if TYPE_CHECKING:
    from unified_tree.controllers.cache.stats import Counters
    from unified_tree.controllers.cache.weights_versions import WeightsVersions
    from unified_tree.controllers.host.tier_pages import TierPages
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.storage_tier.storage_tier import StorageTier
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary
    from unified_tree.tree import UnifiedTree


class StorageController:
    """Prefetches and persists of one cache over one store.

    Args:
        tree: of the cache.
        host: its host pools' free lists.
        tier: settings; its engine and jobs are closed with the controller.
        counters: where figures go.
        generation: says which weights version of a namespace the tree holds now.
        weights: what a store calls them.
        ranks: what must be heard before an answer of the store counts.

    Raises ConfigurationError for what the engine cannot keep or was not opened for, pools or memory that do not fit the
    components, and a weights version that is no string.
    """

    def __init__(
        self,
        tree: UnifiedTree,
        host: TierPages,
        tier: StorageTier,
        counters: Counters,
        generation: Callable[[str], object],
        weights: WeightsVersions,
        ranks: RankAgreement,
    ) -> None:
        self.tree = tree
        self.host = host
        self.tier = tier
        self.counters = counters
        self.generation = generation
        self.ranks = ranks
        self.composition = StoredComposition(tree.components, tree.page_size, tier.pools, tier.memory, tier.written)
        records = self.composition.records
        needed = [*tier.pools.values(), *([records] if records is not None else [])]
        check_opened_for(tier.engine.stats().pools, needed)
        check_can_hold(tier.engine.capabilities, needed)
        KeyChain(page_size=tree.page_size, weights_version=tier.weights_version)  # which refuses a version that is none
        self.store = CheckedStorage(tier.engine)
        self.known = StoredMemory(tier.persist.known_pages, tier.persist.recheck_s, tier.clock)
        self.path_names = tuple(c.name for c in tree.components if c.required and isinstance(c.coverage, Path))
        self._weights = weights
        self.prefetching = Prefetching(self)
        self.persist_queue = PersistQueue(self)
        self._is_closed = False

    def value_bytes(self, component: str) -> int:
        """Bytes of a stored page."""
        return self.tier.pools[component].value_bytes

    def chain(self, namespace: str) -> KeyChain | None:
        """The keys of a namespace under the weights it has now; None as long as these have no name."""
        version = self._weights.of(namespace)
        return None if version is None else KeyChain(page_size=self.tree.page_size, weights_version=version)

    def prefetch(self, request: Hashable, key: Key) -> bool:
        """See PrefixCache.prefetch."""
        return not self._is_closed and self.prefetching.begin(request, key)

    def backed_up(self, boundary: Boundary) -> None:
        """A boundary came to host."""
        self.persist_queue.add(boundary)

    def poll(self) -> None:
        """Apply what has come or gone, and begin what is due. Never blocks. Cost: O(what ended and what begins)."""
        self.prefetching.poll()
        self.persist_queue.poll()

    def drain(self) -> None:
        """Finish every prefetch and persist. Blocks."""
        while self.prefetching.is_busy or self.persist_queue.is_busy:
            self.tier.reading.wait()
            self.tier.writing.wait()
            self.poll()
            self.ranks.tick()

    def flush(self) -> None:
        """Store every boundary that is on host, also what came there before this store did, and wait for that. Blocks."""
        for boundary in self.tree.boundaries():
            if self.persist_queue.is_full:
                self.drain()
            self.persist_queue.add(boundary)
        self.drain()

    def close(self) -> None:
        """Break off what is under way, give everything back, and close the engine. Blocks as long as the engine's calls do.

        Everything is closed whatever one of them raises, and that is raised at the end. Twice is as good as once.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as closing:  # the last first
            closing.callback(self.tier.engine.close)
            closing.callback(self.persist_queue.close)
            closing.callback(self.prefetching.close)
            closing.callback(self.tier.writing.close)
            closing.callback(self.tier.reading.close)

    def figures(self) -> StorageTierStats:
        """Totals so far. Cost: O(pools)."""
        engine = self.tier.engine.stats()
        errors, last_error = self.store.errors
        return StorageTierStats(
            prefetches=self.prefetching.begun,
            prefetches_open=self.prefetching.requests.open_count,
            prefetches_ended=self.prefetching.requests.ended_count,
            joined=self.prefetching.joined,
            prefetched_tokens=self.prefetching.tokens,
            prefetched_pages=self.prefetching.pages,
            prefetched_bytes=self.prefetching.size_bytes,
            persisted_boundaries=self.persist_queue.done,
            persists_waiting=self.persist_queue.waiting_count,
            persisted_pages=self.persist_queue.pages,
            persisted_bytes=self.persist_queue.size_bytes,
            known_pages=len(self.known),
            pools=engine.pools,
            latencies=self.store.latencies,
            quarantined=self.store.quarantined,
            errors=errors,
            last_error=last_error,
            is_degraded=engine.is_degraded,
        )
