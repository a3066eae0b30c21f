"""One cache's store, as its prefetches and writes share it, with the tree, the host pages and the digests of stored pages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from unified_tree.controllers.storage.checked_storage import CheckedStorage, FailedReads
from unified_tree.controllers.storage.key_chain import KeyChain
from unified_tree.controllers.storage.storage_engine import check_can_hold, check_opened_for
from unified_tree.controllers.storage_tier.storage_tier_stats import StorageTierTotals
from unified_tree.controllers.storage_tier.stored_composition import StoredComposition
from unified_tree.controllers.storage_tier.stored_digests import KnownPrefixes, StoredDigests
from unified_tree.inputs.printable import printable

if TYPE_CHECKING:
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.pages.tier_pages import TierPages
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.storage_tier.fetch import Fetch
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.persist_job import PersistJob
    from unified_tree.controllers.storage_tier.storage_tier import StorageTier
    from unified_tree.controllers.weights.weights import Weights
    from unified_tree.declare.keys import Key
    from unified_tree.terms.results import Boundary
    from unified_tree.tree import UnifiedTree


_LOG = logging.getLogger("unified_tree.storage_tier")


class TierStore:
    """The store of one cache.

    Args:
        tree: of the cache.
        host: its host pools' free lists.
        tier: settings, the engine, and what runs the jobs.
        counters: counts events.
        weights: the weights version of each namespace, and its name in a store.
        ranks: agreement with the other ranks, before a result of the store is used.
        jobs: makes the jobs on the store; None for this process itself.

    Attributes:
        generation: the current generation of a namespace.
        composition: the pools that the store has.
        store: where pages are kept. jobs: makes the jobs on it.
        stored_digests, known_prefixes: what is believed to be stored, by page and by prefix.
        path_names: the required paths.
        totals: what has been done.

    Raises ConfigurationError for pools that the engine cannot keep or was not opened for, pools or memory that do not fit the
    components, and a weights version that is not a string.
    """

    def __init__(
        self,
        tree: UnifiedTree,
        host: TierPages,
        tier: StorageTier,
        counters: CacheCounters,
        weights: Weights,
        ranks: RankAgreement,
        jobs: StoreJobs | None = None,
    ) -> None:
        self.tree = tree
        self.host = host
        self.tier = tier
        self.counters = counters
        self.generation = weights.generations.current
        self.ranks = ranks
        self.composition = StoredComposition(tree.components, tree.page_size, tier.pools, tier.memory, tier.written)
        records = self.composition.records
        needed = [*tier.pools.values(), *([records] if records is not None else [])]
        check_opened_for(tier.engine.stats().pools, needed)
        check_can_hold(tier.engine.capabilities, needed)
        owners = tree.state.owners
        self._owners = () if owners is None else tuple(owners.names)
        self._chain = KeyChain(page_size=tree.page_size, weights_version=tier.weights_version, owners=self._owners)
        prefetch = tier.prefetch
        self.store = CheckedStorage(tier.engine, FailedReads(prefetch.max_failed_pages, prefetch.failed_pause_s, tier.clock))
        self.stored_digests = StoredDigests(tier.persist.known_pages, tier.persist.recheck_s, tier.clock)
        self.known_prefixes = KnownPrefixes(tree.page_size, tier.persist.known_pages)
        self.jobs = jobs or LocalStoreJobs(self.store, self.composition, self.stored_digests, tier)
        self.path_names = tuple(c.name for c in tree.components if c.required and c.coverage.is_path)
        self._weights = weights
        self.totals = StorageTierTotals()
        self._warned: set[tuple[str, str]] = set()

    def chain(self, namespace: str) -> KeyChain | None:
        """The key chain of a namespace under its current weights; None while these have no name."""
        version = self._weights.name(namespace)
        if version is None:
            return None
        if version != self._chain.weights_version:
            self._chain = KeyChain(page_size=self.tree.page_size, weights_version=version, owners=self._owners)
        return self._chain

    def is_away(self) -> bool:
        """Whether the store answered none of the last look-up."""
        return self.jobs.is_away

    def count_drop(self, reason: str, about: Key | Boundary) -> None:
        """Count an operation that was dropped or failed, and log it at debug level, because it may happen every step."""
        self.counters.count_drop(reason)
        _LOG.debug("dropped: %s: %s", reason, about)

    def broke_off(self, what: str, error: str, about: Key) -> None:
        """Count a job of some kind that was aborted, and log why once for each kind of error. A closed store is no error."""
        kind = error.partition(":")[0]
        if kind == "closed":
            return
        self.store.broke_off(f"{what}: {error}")
        if (what, kind) not in self._warned:
            self._warned.add((what, kind))
            _LOG.warning("%s of %s broke off: %s (logged once; further ones are counted)", what, about, printable(error, 1000))


class StoreJobs(Protocol):
    """Makes the jobs of a storage controller. A job leaves its result in the record that it is given."""

    @property
    def is_away(self) -> bool:
        """Whether the store answered for nothing in the last look-up."""
        ...

    @property
    def outages(self) -> int:
        """How often the store answered again after that; what it had kept before may be gone."""
        ...

    def look_up(self, found: FoundPrefix, chain: KeyChain) -> Steps:
        """Find out what the store has of a prompt: `found.lengths`."""
        ...

    def read_paths(self, fetch: Fetch) -> Steps:
        """Read the path pages for which host pages are allocated: `fetch.arrived_pages`."""
        ...

    def read_trailing(self, fetch: Fetch, length_pages: int) -> Steps:
        """Read the windows and states of one length: `fetch.arrived`."""
        ...

    def persist(self, job: PersistJob, chain: KeyChain) -> Steps:
        """Write what the store lacks of a boundary: `job.is_done`."""
        ...


class LocalStoreJobs:
    """The jobs on a store of this process.

    Args:
        store: where pages are kept.
        composition: its pools.
        stored_digests: pages that are believed to be stored.
        tier: has the policies.
    """

    def __init__(
        self, store: CheckedStorage, composition: StoredComposition, stored_digests: StoredDigests, tier: StorageTier
    ) -> None:
        self._store = store
        self._composition = composition
        self._stored_digests = stored_digests
        self._tier = tier

    @property
    def is_away(self) -> bool:
        """See StoreJobs.is_away."""
        return self._store.is_away

    @property
    def outages(self) -> int:
        """See StoreJobs.outages."""
        return self._store.outages

    def look_up(self, found: FoundPrefix, chain: KeyChain) -> Steps:
        """See StoreJobs.look_up."""
        return found.look_up(self._store, self._composition, chain, self._stored_digests)

    def read_paths(self, fetch: Fetch) -> Steps:
        """See StoreJobs.read_paths."""
        return fetch.read_paths(self._store, self._tier.prefetch.batch_pages)

    def read_trailing(self, fetch: Fetch, length_pages: int) -> Steps:
        """See StoreJobs.read_trailing."""
        return fetch.read_trailing(self._store, length_pages)

    def persist(self, job: PersistJob, chain: KeyChain) -> Steps:
        """See StoreJobs.persist."""
        return job.store(self._store, chain, self._stored_digests, self._tier.persist)
