"""Which pages this process has seen in the store, so that a long prefix is not queried again at every turn.

A store may evict any page, so an entry expires, and is discarded when a query does not find the page.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unified_tree.controllers.storage.digests import Digests


class Seen(NamedTuple):
    """The leading pages of a prefix that are believed to be stored.

    Attributes:
        page_count: how many.
        oldest_s: when the one was seen that was not seen for longest.
        discards: see StoredDigests; after another one this is not believed any more.
    """

    page_count: int
    oldest_s: float
    discards: int


NOT_SEEN = Seen(0, float("inf"), 0)


class StoredDigests:
    """A bounded set of digests whose path pages are believed to be in the store. Thread-safe.

    Args:
        capacity: digests; the oldest go first.
        keep_s: how long an entry is believed.
        clock: seconds.

    Attributes:
        discards: how often a digest was removed because its page was not found.
        unread_count: digests that were written, and left this set before they were read.
    """

    def __init__(self, capacity: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._keep_s = keep_s
        self._clock = clock
        self.discards = 0
        self.unread_count = 0
        self._seen: OrderedDict[bytes, float] = OrderedDict()
        self._unread: set[bytes] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._seen)

    def leading(self, digests: Sequence[bytes] | Digests, known: Seen = NOT_SEEN) -> Seen:
        """How many leading digests are all known to be stored.

        Each needs its own entry, because a store may evict the beginning of a prefix and keep its end.

        Args:
            known: what this said of a beginning of the same digests; while it is believed, that beginning is not looked at.

        Cost: O(what is looked at and known).
        """
        oldest = self._clock() - self._keep_s
        with self._lock:
            if not self._is_believed(known, oldest):
                known = NOT_SEEN
            count, first_seen = known.page_count, known.oldest_s
            for count in range(known.page_count, len(digests)):
                seen = self._seen.get(digests[count])
                if seen is None or seen < oldest:
                    break
                first_seen = min(first_seen, seen)
            else:
                count = len(digests)
            return Seen(count, first_seen, self.discards)

    def is_believed(self, known: Seen) -> bool:
        """Whether what `leading` said of a prefix still holds, as far as is known. Cost: O(1)."""
        return self._is_believed(known, self._clock() - self._keep_s)

    def _is_believed(self, known: Seen, oldest_s: float) -> bool:
        return known.discards == self.discards and known.oldest_s >= oldest_s

    def add(self, digests: Iterable[bytes], *, written: bool = True) -> None:
        """Add digests that were written, or else read."""
        now, unread = self._clock(), self._unread
        with self._lock:
            for digest in digests:
                if not written:
                    unread.discard(digest)
                elif digest not in self._seen:
                    unread.add(digest)
                self._seen[digest] = now
                self._seen.move_to_end(digest)
            while len(self._seen) > self._capacity:
                self._left(self._seen.popitem(last=False)[0])

    def _left(self, digest: bytes) -> None:
        if digest in self._unread:
            self._unread.remove(digest)
            self.unread_count += 1

    def clear(self) -> None:
        """Believe nothing any more: the store was away, and may have lost anything."""
        with self._lock:
            for digest in self._seen:
                self._left(digest)
            self._seen.clear()
            self.discards += 1

    def discard(self, digests: Iterable[bytes]) -> None:
        """Remove digests whose pages were not found."""
        with self._lock:
            before = len(self._seen)
            for digest in digests:
                if self._seen.pop(digest, None) is not None:
                    self._left(digest)
            self.discards += len(self._seen) < before
