"""The counters of the storage tier, and a snapshot of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.counters.latency import LatencyStats
    from unified_tree.controllers.storage.storage_stats import StoredPoolStats


@dataclass(slots=True, kw_only=True)
class StorageTierCounters:
    """The accumulating part of StorageTierStats."""

    prefetches: int = 0
    joined: int = 0
    prefetched_tokens: int = 0
    prefetched_pages: int = 0
    prefetched_bytes: int = 0
    persisted_boundaries: int = 0
    persisted_pages: int = 0
    persisted_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTierStats:
    """A snapshot; totals count from the attachment of the tier.

    Attributes:
        prefetches: started; `joined`: those that followed another instead. Of both, `prefetches_open` have not ended;
            `prefetches_ended` have ended and are kept for their requests.
        prefetched_tokens: tokens by which prefixes on host grew; `prefetched_pages`, `prefetched_bytes` over all components.
        persisted_boundaries: written whole; `boundaries_waiting` to be written; `boundaries_to_retry` that a fault of the store
            kept from it, and that are tried again.
        persisted_pages, persisted_bytes: over all components.
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

    prefetches: int
    prefetches_open: int
    prefetches_ended: int
    joined: int
    prefetched_tokens: int
    prefetched_pages: int
    prefetched_bytes: int
    persisted_boundaries: int
    boundaries_waiting: int
    persisted_pages: int
    persisted_bytes: int
    known_pages: int
    unread_pages: int
    pools: Mapping[str, StoredPoolStats]
    latencies: Mapping[tuple[str, str], LatencyStats]
    quarantined: Mapping[str, int]
    faults: Mapping[str, int]
    failed_pages: int
    skipped_reads: int
    freed_bytes: int
    boundaries_to_retry: int
    errors: int
    last_error: str | None
    is_degraded: bool
