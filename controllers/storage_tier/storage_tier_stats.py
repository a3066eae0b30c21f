"""The statistics of the storage tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.controllers.counters.cache_counters import total

if TYPE_CHECKING:
    from unified_tree.controllers.counters.latency import LatencyStats
    from unified_tree.controllers.storage.storage_engine import StoredPoolStats


@dataclass(slots=True, kw_only=True)
class StorageTierTotals:
    """The totals that a storage tier counts, and that `StorageTierStats` and its metrics show as they are."""

    prefetches: int = total("prefetches started")
    joined: int = total("prefetches that waited for another's pages")
    prefetched_tokens: int = total("tokens by which prefixes on host grew")
    prefetched_pages: int = total("pages read into host memory")
    prefetched_bytes: int = total("bytes read into host memory")
    persisted_boundaries: int = total("boundaries written whole")
    persisted_pages: int = total("pages written")
    persisted_bytes: int = total("bytes written")


@dataclass(slots=True, kw_only=True)
class StorageTierStats(StorageTierTotals):
    """A snapshot: the totals of `StorageTierTotals` since the tier was attached, those of its engine, and its state.

    Attributes:
        prefetches_open: prefetches that have not ended; `prefetches_ended`: that have ended and are kept for their requests.
        boundaries_waiting: boundaries to be written; `boundaries_to_retry`: that a fault of the store kept from it, and that
            are tried again.
        known_pages: path pages remembered as stored; `unread_pages`: those that were written, and not read until they were
            forgotten or found to be gone.
        pools: the engine's statistics, by pool.
        latencies: of its calls, by pool and call (exists, get, put).
        quarantined: corrupt pages found, by pool.
        faults: pages that faults of the store concern, by the kind of fault (`StoreFault`), all kinds; of `broken_job` jobs.
        failed_pages: pages that the store listed and did not give lately, so that they are not asked for at present;
            `skipped_reads`: how often a look-up met one of them.
        freed_bytes: what the engine gave up of its own accord to keep its bound, of pools that it was not opened for or of
            tables of another size; not the values that make room for others of their pool.
        errors: calls that failed as a whole; `last_error`: the last message.
        is_degraded: whether the engine reports that it cannot be used at present.
    """

    prefetches_open: int
    prefetches_ended: int
    boundaries_waiting: int
    known_pages: int
    unread_pages: int = total("path pages written that were not read while known")
    pools: Mapping[str, StoredPoolStats]
    latencies: Mapping[tuple[str, str], LatencyStats]
    quarantined: Mapping[str, int]
    faults: Mapping[str, int]
    failed_pages: int
    skipped_reads: int = total("times that a page was not asked for, because the store listed it lately and did not give it")
    freed_bytes: int = total("bytes of other pools or tables that the store gave up to keep its bound")
    boundaries_to_retry: int
    errors: int = total("calls of the store that failed as a whole")
    last_error: str | None
    is_degraded: bool
