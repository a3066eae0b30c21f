"""The jobs on a store, as a controller starts them: made in this process, or by others that hold the host pages.

An engine whose scheduler and workers are different processes has the tree in one and the host pages in the others. There the
jobs are messages to the workers (`unified_tree.controllers.adapters.vllm`), and the rest of a controller is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from unified_tree.controllers.storage.checked_storage import CheckedStorage
    from unified_tree.controllers.storage.key_chain import KeyChain
    from unified_tree.controllers.storage_tier.fetch import Fetch
    from unified_tree.controllers.storage_tier.found_prefix import FoundPrefix
    from unified_tree.controllers.storage_tier.jobs import Steps
    from unified_tree.controllers.storage_tier.persist_job import PersistJob
    from unified_tree.controllers.storage_tier.storage_tier import StorageTier
    from unified_tree.controllers.storage_tier.stored_composition import StoredComposition
    from unified_tree.controllers.storage_tier.stored_digests import StoredDigests


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
