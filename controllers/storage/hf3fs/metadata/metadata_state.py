"""All that the metadata service knows, and what it answers; without HTTP, and one thread at a time.

Nothing is answered before it is in the database. Where that cannot be written, changes are refused until it can: what is on
disk then is older than what is in memory, but no page that it gives to a key was given to a writer since.

Leases are in memory only. After a service was killed nobody knows who was reading and writing. For one lease's time no page
is then handed out.

Every lease lasts equally long, so they end in the order they were given and none is searched for. A writer whose lease ends
is no owner any more, but it may still be writing: its pages are set aside for longer.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from unified_tree.controllers.storage.engine_settings import LONGEST_S, SECONDS, Bounds, check_number
from unified_tree.controllers.storage.hf3fs.metadata.page_table import PageTable, Rank, RefusedError, Shape
from unified_tree.controllers.storage.hf3fs.metadata.state_database import StateDatabase
from unified_tree.controllers.storage.hf3fs.metadata_wire import GONE, PRESENT, UNKNOWN, WRITTEN
from unified_tree.terms.errors import StorageError


class MetadataState:
    """Ranks, their namespaces, and the leases on their pages.

    Args:
        database: where it is kept. Closed with the state.
        lease_s: how long readers and writers own their pages.
        aside_s: how long pages rest whose writers vanished.
        draw: random numbers of 62 bits.
        clock: seconds, which never go back.

    Raises ConfigurationError for invalid numbers, and StorageError where the database cannot be read.
    Methods about keys raise RefusedError for a rank or namespace that is not known, and for another epoch than the rank's.
    """

    def __init__(
        self,
        database: StateDatabase,
        *,
        lease_s: float,
        aside_s: float,
        draw: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_number("lease_s", lease_s, float, SECONDS)
        check_number("aside_s", aside_s, float, Bounds(0, LONGEST_S))
        self._database = database
        self.lease_s = lease_s
        self._clock = clock
        self._draw = draw
        self._leases = LeaseBook(lease_s, aside_s, draw())
        ranks, is_clean = database.load()
        quiet_until = clock() if is_clean else clock() + lease_s
        self._ranks = {name: Rank(stored, quiet_until) for name, stored in ranks.items()}
        with suppress(StorageError):  # then changes are refused
            database.mark(is_clean=False)
            database.checkpoint()  # a power failure must not take this

    def open(self, name: str, shapes: Mapping[str, Shape], seen: int, *, may_replace: bool) -> int:
        """The epoch of a rank whose file has these namespaces.

        A rank is made where there is none. One with other namespaces is begun anew if that is allowed; so is one whose file is
        not the one that it knows (`seen`, the epoch that the file bears, 0 for none). Neither while somebody reads or writes.
        A file that holds something without bearing a mark (a negative `seen`) may be anybody's: it makes no rank.
        """
        self._begin()
        rank = self._ranks.get(name)
        if rank is None and seen < 0:
            raise RefusedError(
                409,
                f"rank {name} is not known, and its file holds something that is not ours; move it away, or name another rank",
            )
        seen = max(seen, 0)
        if rank is None:
            return self._made(name, shapes, self._clock() + self._leases.lease_s * bool(seen))
        if rank.shapes != shapes and not may_replace:
            raise RefusedError(409, f"rank {name} was opened with other namespaces: {rank.described()}")
        if rank.shapes == shapes and (seen == rank.epoch or (not seen and rank.is_untouched)):
            return rank.epoch
        if rank.is_in_use:
            raise RefusedError(409, f"rank {name} is in use with other namespaces, or with another file; try later")
        return self._made(name, shapes, rank.quiet_until)

    def lookup(self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]) -> list[int]:
        """Where keys are, which may change at any time."""
        self._begin(ended)
        return self._table(rank, epoch, namespace).find(keys)

    def read(self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]) -> tuple[int, list[int]]:
        """A lease (0 for nothing), and where keys are; that does not change until the lease ends."""
        self._begin(ended)
        table = self._table(rank, epoch, namespace)
        pages = table.find(keys)
        found = [page for page in pages if page >= 0]
        return (self._leases.read(table, found, self._clock()) if found else 0), pages

    def reserve(
        self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]
    ) -> tuple[int, list[int]]:
        """A lease (0 for nothing), and a page to write for each key, or why there is none."""
        self._begin(ended)
        self._check_writable()
        table = self._table(rank, epoch, namespace)
        is_quiet = self._clock() < self._ranks[rank].quiet_until
        answers, evicted = table.reserve(keys, is_quiet=is_quiet)
        given = [key for key, page in zip(keys, answers, strict=True) if page >= 0]
        lease = self._leases.write(table, given, self._clock()) if given else 0
        if evicted:
            with _refusing():
                self._database.remove(self._ranks[rank].numbers[namespace], evicted)
        return lease, answers

    def confirm(
        self, rank: str, epoch: int, namespace: str, lease: int, keys: Sequence[bytes], flags: bytes, ended: Sequence[int]
    ) -> list[int]:
        """Learn how writing ended (`metadata_wire.WRITTEN` and the others): PRESENT, or GONE for what is not kept."""
        self._begin(ended)
        self._check_writable()
        table = self._table(rank, epoch, namespace)
        answers, pages = [GONE] * len(keys), {}
        for index, (key, flag) in enumerate(zip(keys, flags, strict=True)):
            if not self._leases.is_writing(lease, key):
                continue
            self._leases.wrote(lease, key)
            if flag == WRITTEN:
                pages[key], answers[index] = table.confirm(key), PRESENT
            elif flag == UNKNOWN:
                self._leases.set_aside(table, key, self._clock())
            else:
                table.cancel(key)
        if pages:
            with _refusing():
                self._database.add(self._ranks[rank].numbers[namespace], pages)
        return answers

    def delete(self, rank: str, epoch: int, namespace: str, keys: Sequence[bytes], ended: Sequence[int]) -> list[int]:
        """Forget keys; those being written are left alone."""
        self._begin(ended)
        self._check_writable()
        gone = self._table(rank, epoch, namespace).forget(keys)
        if gone:
            with _refusing():
                self._database.remove(self._ranks[rank].numbers[namespace], gone)
        return [GONE] * len(keys)

    def clear(self, rank: str, epoch: int, namespace: str) -> int:
        """Forget all keys of a namespace; how many."""
        self._begin()
        self._check_writable()
        table = self._table(rank, epoch, namespace)
        gone = table.forget([key for key, _ in table.items()])
        if gone:
            with _refusing():
                self._database.clear(self._ranks[rank].numbers[namespace])
        return len(gone)

    def stats(self) -> dict[str, Any]:
        """Counts and gauges by rank and namespace. Cost: O(namespaces)."""
        self._begin()
        return {"is_behind": self._database.is_behind, "ranks": {name: rank.stats() for name, rank in self._ranks.items()}}

    def checkpoint(self) -> None:
        """Flush the database (`StateDatabase.checkpoint`): in any thread, while the state is used. Raises StorageError."""
        self._database.checkpoint()

    def check(self) -> None:
        """Raise AssertionError where a page is in no place, or in two. Cost: O(pages); for tests."""
        for name, rank in self._ranks.items():
            for namespace, table in rank.tables.items():
                assert sorted(table.owners()) == list(range(table.page_count)), (name, namespace)

    def tables(self, rank: str) -> Mapping[str, PageTable]:
        """The tables of a rank, to be looked at."""
        return self._ranks[rank].tables

    def close(self) -> None:
        """Write down the order of use, and whether the end is a clean one."""
        now = self._clock()
        self._leases.expire(now)
        is_clean = self._leases.is_empty and all(rank.quiet_until <= now for rank in self._ranks.values())
        with suppress(StorageError):  # then the next service knows what was answered, and is quiet at first
            for rank in self._ranks.values():
                for name, table in rank.tables.items():
                    self._database.reorder(rank.numbers[name], dict(table.items()))
            self._database.mark(is_clean=is_clean)
        self._database.close()

    def _begin(self, ended: Sequence[int] = ()) -> None:
        self._leases.expire(self._clock())
        self._leases.end(ended)

    def _table(self, name: str, epoch: int, namespace: str) -> PageTable:
        rank = self._ranks.get(name)
        if rank is None or rank.epoch != epoch:
            raise RefusedError(410, f"rank {name} has another epoch than {epoch}, or is not known; open it")
        if namespace not in rank.tables:
            raise RefusedError(404, f"rank {name} has no namespace {namespace!r}: {', '.join(rank.tables)}")
        return rank.tables[namespace]

    def _made(self, name: str, shapes: Mapping[str, Shape], quiet_until: float) -> int:
        self._check_writable()
        with _refusing():
            rank = Rank(self._database.open_rank(name, self._draw() or 1, shapes), quiet_until)
        self._ranks[name] = rank
        return rank.epoch

    def _check_writable(self) -> None:
        with _refusing():
            self._database.write()


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise RefusedError(503, f"{error}; changes are refused until it can: is the disk full?") from error


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
