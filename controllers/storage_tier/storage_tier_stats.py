"""What the storage tier counts, and a snapshot of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.storage.checked_storage import CallLatency
    from unified_tree.controllers.storage.storage_stats import StoredPoolStats


@dataclass(slots=True, kw_only=True)
class StorageTierCounters:
    """What only grows; see StorageTierStats."""

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
    """Since the tier was attached.

    Attributes:
        prefetches: begun; `joined` that waited for another's pages instead. Of both, `prefetches_open` have not ended, and
            `prefetches_ended` have, and are remembered for their requests.
        prefetched_tokens: by which prefixes on host grew; `prefetched_pages`, `prefetched_bytes` over all components.
        persisted_boundaries: written whole; `boundaries_waiting` to be written.
        persisted_pages, persisted_bytes: over all components.
        known_pages: pages remembered as stored.
        pools: what the engine counts, by pool.
        latencies: of its calls, by pool and call (exists, get, put).
        quarantined: pages that were not what had been put, by pool.
        errors: calls that failed as a whole; `last_error` what the last one said.
        is_degraded: the engine says that it cannot be used at present.
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
    pools: Mapping[str, StoredPoolStats]
    latencies: Mapping[tuple[str, str], CallLatency]
    quarantined: Mapping[str, int]
    errors: int
    last_error: str | None
    is_degraded: bool
