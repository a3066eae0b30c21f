"""The faults of a store, whatever the engine: one place that counts them by kind and logs each kind at a limited rate."""

from __future__ import annotations

import threading
from enum import Enum

from unified_tree.controllers.storage.rate_limited_log import RateLimitedLog
from unified_tree.controllers.storage.storage_engine import Outcome


class StoreFault(Enum):
    """A kind of fault, as statistics and metrics name it. All but the last count pages."""

    UNANSWERED = "unanswered"
    """The store did not say whether it has them: it was not reachable, or failed the look-up."""
    NOT_GIVEN = "not_given"
    """The store listed them and then did not have them."""
    READ_FAILED = "read_failed"
    """The store failed to read them."""
    CORRUPT = "corrupt"
    """The store gave something else than what was put; these were removed from it."""
    WRITE_FAILED = "write_failed"
    """The store failed to write them."""
    WRITE_DROPPED = "write_dropped"
    """The store did not take them: it is full, not reachable, or locked by another writer for too long."""
    BROKEN_JOB = "broken_job"
    """A job ended because the engine raised an error that is no StorageError. Counts jobs."""


FAULT_OF_READ = {
    Outcome.MISSING: StoreFault.NOT_GIVEN,
    Outcome.FAILED: StoreFault.READ_FAILED,
    Outcome.CORRUPT: StoreFault.CORRUPT,
}
"""What a page of a `get` means that was looked up before. Any other outcome is none."""
FAULT_OF_WRITE = {Outcome.DROPPED: StoreFault.WRITE_DROPPED, Outcome.FAILED: StoreFault.WRITE_FAILED}
"""What a page of a `put` means. Any other outcome is none."""
_WORDS = {
    StoreFault.UNANSWERED: "did not say whether it has %d pages of pool %r",
    StoreFault.NOT_GIVEN: "listed %d pages of pool %r and then did not have them",
    StoreFault.READ_FAILED: "failed to read %d pages of pool %r",
    StoreFault.CORRUPT: "returned %d pages of pool %r that are not what was put; they are not used, and removed from it",
    StoreFault.WRITE_FAILED: "failed to write %d pages of pool %r",
    StoreFault.WRITE_DROPPED: "did not take %d pages of pool %r: it is full, not reachable, or locked by another writer",
}


class StoreFaults:
    """Counts faults and logs them. Thread-safe. Cost: a lock a fault, and nothing without one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(StoreFault, 0)
        self._log = RateLimitedLog()

    @property
    def counts(self) -> dict[str, int]:
        """How many so far, by kind; every kind is there."""
        with self._lock:
            return {fault.value: count for fault, count in self._counts.items()}

    def count(self, fault: StoreFault, count: int) -> None:
        """Count a fault that the caller logs."""
        with self._lock:
            self._counts[fault] += count

    def note(self, fault: StoreFault, pool: str, page_count: int, why: str | None = None) -> None:
        """Count a fault, and log it unless the same kind of the same pool was logged within the last minute.

        Args:
            fault: any but BROKEN_JOB.
            why: what the engine says.
        """
        self.count(fault, page_count)
        self._log.warning((fault, pool), f"storage {_WORDS[fault]}%s", page_count, pool, "" if why is None else f": {why}")
