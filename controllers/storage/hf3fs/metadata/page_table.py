"""Which key has which page, in one namespace of one rank.

A page is in exactly one place: free, written (handed to one writer for one key), held by a key, an orphan (its key is gone but
somebody may still read it), or set aside (its writer never said how it ended, and may still be writing). Only a free page
is handed to a writer. Keys lie in order of use (`held_keys`), so that a victim is found at the front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from unified_tree.controllers.storage.hf3fs.metadata.held_keys import HeldKeys
from unified_tree.controllers.storage.hf3fs.metadata_wire import BUSY, FULL, NOWHERE, PRESENT


@dataclass(slots=True)
class TableCounters:
    """What happened in one namespace since the service started."""

    queries: int = 0
    hits: int = 0
    reserved: int = 0
    confirmed: int = 0
    evicted: int = 0
    removed: int = 0
    refused: int = 0
    abandoned: int = 0


class PageTable:
    """Pages 0 … page_count - 1 and their owners. One thread at a time.

    Cost: every method O(1) a key, `reserve` amortized: a page that is being read and stands in the way of an eviction counts as
    used just now.

    Args:
        page_count: how many there are.
        held: keys and their pages, the least recently used first.
    """

    def __init__(self, page_count: int, held: Mapping[bytes, int]) -> None:
        self.page_count = page_count
        self.counters = TableCounters()
        self._writing: dict[bytes, int] = {}
        self._readers: dict[int, int] = {}
        self._orphans: set[int] = set()
        self._aside: set[int] = set()
        taken = set(held.values())
        self._fresh = max(taken, default=-1) + 1
        self._held = HeldKeys(held.items(), room=self._fresh)
        self._free = deque(page for page in range(self._fresh) if page not in taken)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The page of each key, or NOWHERE; finding is using."""
        pages = self._held.find(keys)
        self._held.use([page for page in pages if page >= 0])
        self.counters.queries += len(pages)
        self.counters.hits += len(pages) - pages.count(NOWHERE)
        return pages

    def lock(self, pages: Iterable[int]) -> None:
        """One more reader for each of these pages that are held."""
        readers = self._readers
        for page in pages:
            readers[page] = readers.get(page, 0) + 1

    def unlock(self, pages: Iterable[int]) -> None:
        """One reader less; a page without a key is free after its last."""
        for page in pages:
            left = self._readers[page] - 1
            if left:
                self._readers[page] = left
                continue
            del self._readers[page]
            if page in self._orphans:
                self._orphans.discard(page)
                self._free.append(page)

    def reserve(self, keys: Sequence[bytes], *, is_quiet: bool = False) -> tuple[list[int], list[int]]:
        """A page to write for each key, or PRESENT, BUSY or FULL; and those of the pages that a key held until now.

        While it is quiet no page is handed out: who had one before the service was started may still be at it.
        """
        answers: list[int] = []
        evicted: list[int] = []
        is_full = False
        for key in keys:
            [present] = self._held.find([key])
            if present >= 0:
                self._held.use([present])
                answers.append(PRESENT)
            elif key in self._writing:
                answers.append(BUSY)
            else:
                page = FULL if is_quiet or is_full else self._take(evicted)
                is_full = page == FULL
                if page >= 0:
                    self._writing[key] = page
                    self.counters.reserved += 1
                else:
                    self.counters.refused += 1
                answers.append(page)
        self.counters.evicted += len(evicted)
        return answers, evicted

    def confirm(self, key: bytes) -> int:
        """The writer is done: the page is held by its key."""
        page = self._writing.pop(key)
        self._held.add(key, page)
        self.counters.confirmed += 1
        return page

    def cancel(self, key: bytes) -> None:
        """The writer did not write, and will not: the page is free."""
        self._free.append(self._writing.pop(key))
        self.counters.abandoned += 1

    def set_aside(self, key: bytes) -> int:
        """Nobody knows whether the writer is still at it: neither free nor held, until `reclaim`."""
        page = self._writing.pop(key)
        self._aside.add(page)
        self.counters.abandoned += 1
        return page

    def reclaim(self, page: int) -> None:
        """Free a page that was set aside."""
        self._aside.remove(page)
        self._free.append(page)

    def forget(self, keys: Iterable[bytes]) -> list[int]:
        """Forget keys; the pages of those that were there. A page that is being read is free when it is not any more."""
        gone = []
        for key in keys:
            page = self._held.remove(key)
            if page != NOWHERE:
                self._release(page)
                gone.append(page)
        self.counters.removed += len(gone)
        return gone

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Keys and their pages, the least recently used first."""
        yield from self._held.items()

    def gauges(self) -> dict[str, int]:
        """How many pages are where; they add up to `pages`, but for `read`, which are held or orphans."""
        return {
            "pages": self.page_count,
            "held": len(self._held),
            "written": len(self._writing),
            "orphans": len(self._orphans),
            "aside": len(self._aside),
            "free": len(self._free) + self.page_count - self._fresh,
            "read": len(self._readers),
        }

    @property
    def is_in_use(self) -> bool:
        """Whether a page is being read or written, or may be."""
        return bool(self._readers or self._writing or self._aside)

    def owners(self) -> list[int]:
        """Every page that is in some place, as often as it is in one; for tests: each stands there once."""
        never = range(self._fresh, self.page_count)
        return [
            *(page for _, page in self._held.items()),
            *self._writing.values(),
            *self._orphans,
            *self._aside,
            *self._free,
            *never,
        ]

    def _take(self, evicted: list[int]) -> int:
        if self._free:
            return self._free.popleft()
        if self._fresh < self.page_count:
            self._fresh += 1
            self._held.grow()
            return self._fresh - 1
        for _ in range(len(self._held)):
            key, page = self._held.oldest()
            if page not in self._readers:
                self._held.remove(key)
                evicted.append(page)
                return page
            self._held.use([page])
        return FULL

    def _release(self, page: int) -> None:
        if page in self._readers:
            self._orphans.add(page)
        else:
            self._free.append(page)
