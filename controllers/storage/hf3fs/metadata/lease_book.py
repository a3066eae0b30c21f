"""Who is reading and who is writing which pages, and until when.

Every lease lasts equally long, so they end in the order they were given and none is searched for. A writer whose lease ends
is no owner any more, but it may still be writing: its pages are set aside for longer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from unified_tree.controllers.storage.hf3fs.metadata.page_table import PageTable


@dataclass(frozen=True, slots=True)
class _Reading:
    table: PageTable
    pages: Sequence[int]
    until: float


@dataclass(slots=True)
class _Writing:
    table: PageTable
    keys: set[bytes]
    until: float


class LeaseBook:
    """Leases by number. One thread at a time.

    Args:
        lease_s: how long each lasts.
        aside_s: how long a page is set aside of which nobody knows whether it is still being written.
        first: number of the first lease; numbers of an earlier run must not be met again.
    """

    def __init__(self, lease_s: float, aside_s: float, first: int) -> None:
        self.lease_s = lease_s
        self._aside_s = aside_s
        self._next = first
        self._reading: OrderedDict[int, _Reading] = OrderedDict()
        self._writing: OrderedDict[int, _Writing] = OrderedDict()
        self._aside: deque[tuple[float, PageTable, int]] = deque()

    def read(self, table: PageTable, pages: Sequence[int], now: float) -> int:
        """A lease of a reader on pages that are held."""
        table.lock(pages)
        number = self._number()
        self._reading[number] = _Reading(table, pages, now + self.lease_s)
        return number

    def end(self, numbers: Sequence[int]) -> None:
        """These readers are done; numbers that nobody has are nobody's."""
        for number in numbers:
            lease = self._reading.pop(number, None)
            if lease is not None:
                lease.table.unlock(lease.pages)

    def write(self, table: PageTable, keys: Sequence[bytes], now: float) -> int:
        """A lease of a writer on keys that were reserved."""
        number = self._number()
        self._writing[number] = _Writing(table, set(keys), now + self.lease_s)
        return number

    def is_writing(self, number: int, key: bytes) -> bool:
        """Whether this writer still owns the page of this key."""
        lease = self._writing.get(number)
        return lease is not None and key in lease.keys

    def wrote(self, number: int, key: bytes) -> None:
        """The writer's business with a key is over."""
        lease = self._writing[number]
        lease.keys.remove(key)
        if not lease.keys:
            del self._writing[number]

    def set_aside(self, table: PageTable, key: bytes, now: float) -> None:
        """Nobody knows how the writing of a key ended. `now` never goes back, so that pages are taken back in this order."""
        self._aside.append((now + self._aside_s, table, table.set_aside(key)))

    def expire(self, now: float) -> None:
        """End what is over by now. Cost: O(what is)."""
        while self._reading and (number := next(iter(self._reading))) and self._reading[number].until <= now:
            self.end([number])
        while self._writing and (number := next(iter(self._writing))) and self._writing[number].until <= now:
            lease = self._writing.pop(number)
            for key in sorted(lease.keys):
                self.set_aside(lease.table, key, lease.until)
        while self._aside and self._aside[0][0] <= now:
            _, table, page = self._aside.popleft()
            table.reclaim(page)

    @property
    def is_empty(self) -> bool:
        """Whether nobody reads, writes, or may be writing."""
        return not (self._reading or self._writing or self._aside)

    def _number(self) -> int:
        self._next += 1
        return self._next
