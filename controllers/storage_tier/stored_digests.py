"""Which pages this process has seen in the store, so that a long prefix is not asked for at each turn.

A store evicts as it likes, so an entry is believed for a while only, and discarded when a query says otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class StoredDigests:
    """Digests whose path pages are in the store, as far as is known: a bounded set. Any thread may use it.

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
        """How many digests, from the first on, are all known to be stored. Cost: O(those).

        Each counts by its own entry: a store may evict the beginning of a prefix and keep its end.
        """
        oldest = self._clock() - self._keep_s
        with self._lock:
            for count, digest in enumerate(digests):
                seen = self._seen.get(digest)
                if seen is None or seen < oldest:
                    return count
        return len(digests)

    def add(self, digests: Sequence[bytes]) -> None:
        """These were stored or found."""
        now = self._clock()
        with self._lock:
            for digest in digests:
                self._seen.pop(digest, None)
                self._seen[digest] = now
            while len(self._seen) > self._capacity:
                del self._seen[next(iter(self._seen))]

    def discard(self, digests: Sequence[bytes]) -> None:
        """These turned out not to be there."""
        with self._lock:
            for digest in digests:
                self._seen.pop(digest, None)
