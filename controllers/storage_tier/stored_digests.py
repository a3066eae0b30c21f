"""Which pages this process has seen in the store, so that a long prefix is not queried again at every turn.

A store may evict any page, so an entry expires, and is discarded when a query does not find the page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class StoredDigests:
    """A bounded set of digests whose path pages are believed to be in the store. Thread-safe.

    Args:
        capacity: digests; the oldest go first.
        keep_s: how long an entry is believed.
        clock: seconds.
    """

    def __init__(self, capacity: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._keep_s = keep_s
        self._clock = clock
        self._seen: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._seen)

    def leading_count(self, digests: Sequence[bytes]) -> int:
        """How many leading digests are all known to be stored. Cost: O(that number).

        Each needs its own entry, because a store may evict the beginning of a prefix and keep its end.
        """
        oldest = self._clock() - self._keep_s
        with self._lock:
            for count, digest in enumerate(digests):
                seen = self._seen.get(digest)
                if seen is None or seen < oldest:
                    return count
        return len(digests)

    def add(self, digests: Sequence[bytes]) -> None:
        """Add digests that were stored or found."""
        now = self._clock()
        with self._lock:
            for digest in digests:
                self._seen.pop(digest, None)
                self._seen[digest] = now
            while len(self._seen) > self._capacity:
                del self._seen[next(iter(self._seen))]

    def discard(self, digests: Sequence[bytes]) -> None:
        """Remove digests whose pages were not found."""
        with self._lock:
            for digest in digests:
                self._seen.pop(digest, None)
