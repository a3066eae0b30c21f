"""The storage controller: manages the store behind a cache's host tier, from attach to detach.

The tree changes only in the caller's calls. Jobs access the store and their own host pages, which are locked or not in the
tree. Pages from the store are verified before they can be used (`CheckedStorage`).

A controller starts jobs on a store through `StoreJobs`: in this process, or in others that hold the host pages.

An engine whose scheduler and workers are different processes has the tree in one and the host pages in the others. There the
jobs are messages to the workers (`unified_tree.controllers.adapters.vllm`), and the rest of a controller is the same.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from unified_tree.controllers.host.hybrid_cache_controller import BackupListener
from unified_tree.controllers.storage_tier.persist_queue import PersistQueue
from unified_tree.controllers.storage_tier.prefetcher import Prefetcher
from unified_tree.controllers.storage_tier.storage_tier_stats import StorageTierStats
from unified_tree.controllers.storage_tier.tier_store import TierStore

if TYPE_CHECKING:
    from unified_tree.controllers.storage_tier.storage_tier import StorageTier
    from unified_tree.declare.keys import Key
    from unified_tree.terms.results import Boundary


class StorageController(BackupListener):
    """Reads and writes the store of one cache.

    Args:
        shared: what its prefetches and writes share. Its engine and jobs are closed with the controller.
    """

    def __init__(self, shared: TierStore) -> None:
        self.shared = shared
        self._outages = 0
        self.prefetcher = Prefetcher(shared)
        self.persist_queue = PersistQueue(shared)
        self._is_closed = False

    @property
    def tier(self) -> StorageTier:
        """The settings, the engine and the jobs."""
        return self.shared.tier

    def prefetch(self, request: Hashable, key: Key) -> bool:
        """See PrefixCache.prefetch."""
        return not self._is_closed and self.prefetcher.begin(request, key)

    def backed_up(self, boundary: Boundary) -> None:
        """A boundary was copied to host."""
        self.persist_queue.add(boundary)

    def poll(self) -> None:
        """Continue after ended jobs, and start due ones. Never blocks. Cost: O(jobs ended and started)."""
        if self._outages != self.shared.jobs.outages:
            self._outages = self.shared.jobs.outages
            self.shared.stored_digests.clear()
            self.persist_queue.store_is_back()
        self.prefetcher.poll()
        self.persist_queue.poll()

    @property
    def is_busy(self) -> bool:
        """Whether a read or a write is running or waiting."""
        return self.prefetcher.is_busy or self.persist_queue.is_busy

    def drain(self) -> None:
        """Finish every prefetch, and write every boundary that waits. Blocks."""
        while self.is_busy:
            self.tier.reading.wait()
            self.tier.writing.wait()
            self.poll()
            self.shared.ranks.tick()

    def flush(self) -> None:
        """Store every boundary on host, including those from before the store was attached. Blocks until done."""
        for boundary in self.shared.tree.transfers.boundaries():
            if self.persist_queue.is_full:
                self.drain()
            self.persist_queue.add(boundary)
        self.drain()

    def clear(self) -> None:
        """Remove every page of this cache's pools from the store, those that other servers put there included.

        What waits to be written is written afterwards. Blocks until the writes that have begun have ended, and as long as the
        engine does. Raises StorageError if the store fails; what it has then is not known.
        """
        self.tier.writing.wait()
        try:
            self.tier.engine.clear()
        finally:
            self.shared.stored_digests.clear()

    def close(self, *, keeps_engine: bool = False) -> None:
        """Abort running jobs, release their locks, free their pages, and close the engine. Blocks as long as the engine's calls
        do.

        Everything is closed even if a part raises; the error is raised at the end. Idempotent.

        Args:
            keeps_engine: leave the engine open, for a tier with jobs of its own that goes on with it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with ExitStack() as closing:  # the last first
            if not keeps_engine:
                closing.callback(self.tier.engine.close)
            closing.callback(self.persist_queue.close)
            closing.callback(self.prefetcher.close)
            closing.callback(self.tier.writing.close)
            closing.callback(self.tier.reading.close)

    def stats(self) -> StorageTierStats:
        """A snapshot of the totals. Cost: O(pools)."""
        engine = self.tier.engine.stats()
        errors, last_error = self.shared.store.errors
        return StorageTierStats(
            **asdict(self.shared.totals),
            prefetches_open=self.prefetcher.requests.open_count,
            prefetches_ended=self.prefetcher.requests.ended_count,
            boundaries_waiting=self.persist_queue.waiting_count,
            known_pages=len(self.shared.stored_digests),
            unread_pages=self.shared.stored_digests.unread_count,
            pools=engine.pools,
            latencies=self.shared.store.latencies,
            quarantined=self.shared.store.quarantined,
            faults=self.shared.store.faults.counts,
            failed_pages=len(self.shared.store.failed),
            skipped_reads=self.shared.store.failed.skipped,
            freed_bytes=engine.freed_bytes,
            boundaries_to_retry=self.persist_queue.retry_count,
            errors=errors,
            last_error=last_error,
            is_degraded=engine.is_degraded,
        )
