"""Which pages this process has seen in the store, so that a long prefix is not queried again at every turn.

A store may evict any page, so an entry expires, and is discarded when a query does not find the page.

A turn of a conversation adds a few pages to a prefix of thousands, so only the tail of it is copied and hashed, and looked for
among the digests (`KnownPrefixes`). The node at which the earlier turn ends names that prefix: its id is never used again, a
split leaves it where it is, and the tokens up to there never change. A node that is cut names what is left of the prefix.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from unified_tree.controllers.storage.digests import Digests

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node
    from unified_tree.terms.results import Boundary
    from unified_tree.terms.tier import NodeId


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrefix:
    """A prefix of whole pages under one weights version.

    Attributes:
        weights_version: of the key chain; `digests`: of that chain, one a page.
        seen: how far it was seen in the store.
    """

    weights_version: str
    digests: Digests
    seen: Seen = NOT_SEEN


class KnownPrefixes:
    """The known prefixes of one tree, by the node at whose end each ends.

    Args:
        max_pages: how many pages those that are kept have in all; the one not used for longest goes first, the latest stays
            however long it is. A page takes 32 bytes.
    """

    def __init__(self, page_size: int, max_pages: int) -> None:
        self._page_size = page_size
        self._max_pages = max_pages
        self._pages = 0
        self._by_node: OrderedDict[NodeId, KnownPrefix] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_node)

    def add(self, boundary: Boundary, prefix: KnownPrefix) -> None:
        """Keep what is known up to a boundary that ends a node."""
        before = self._by_node.pop(boundary.node, None)
        self._by_node[boundary.node] = prefix
        self._pages += len(prefix.digests) - (0 if before is None else len(before.digests))
        while self._pages > self._max_pages and len(self._by_node) > 1:
            _, oldest = self._by_node.popitem(last=False)
            self._pages -= len(oldest.digests)

    def _shorten(self, node: Node, known: KnownPrefix) -> KnownPrefix:
        """A node was cut since: keep what is known of what it has left."""
        pages, seen = node.end // self._page_size, known.seen
        shorter = replace(known, digests=known.digests[:pages], seen=seen._replace(page_count=min(seen.page_count, pages)))
        self._pages -= len(known.digests) - pages
        self._by_node[node.id] = shorter
        return shorter

    def longest(self, node: Node | None, length: int, weights_version: str) -> KnownPrefix:
        """The longest known prefix of a boundary of this length, which lies in `node` (`Locks.find`); an empty one if none is
        known.

        Cost: O(nodes between its end and the boundary).
        """
        while node is not None:
            known = self._by_node.get(node.id)
            if known is not None and node.end <= length and known.weights_version == weights_version:
                self._by_node.move_to_end(node.id)
                if len(known.digests) * self._page_size > node.end:
                    known = self._shorten(node, known)
                return known
            node = node.parent
        return KnownPrefix(weights_version=weights_version, digests=Digests())
