"""One rank in the metadata service: which life of its file it knows, and for each namespace which key has which page.

A page is in exactly one place: free, written (handed to one writer for one key), held by a key, an orphan (its key is gone but
somebody may still read it), or set aside (its writer never said how it ended, and may still be writing). Only a free page
is handed to a writer. Keys lie in order of use (`HeldKeys`), so that a victim is found at the front.

Which key holds which page, in order of use, without a structure that must ever be rebuilt as a whole.

By page, in flat arrays: the key, and the pages used just before and just after it. By key, in a dictionary for each first
byte, the page. A dictionary is rebuilt when it has grown or changed enough, all of it at once; keys are uniformly distributed,
so each of these has one 256th of all and is rebuilt at another moment. An OrderedDict of two million keys stood still for one
to two seconds each time, and the garbage collector went through it; dictionaries of bytes and integers it leaves out.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unified_tree.controllers.storage.hf3fs.metadata_wire import BUSY, FULL, NOWHERE, PRESENT
from unified_tree.controllers.storage.storage_engine import KEY_BYTES


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


_SHARDS = 256
_END = 0
"""Stands in the order before the oldest and behind the youngest page; page p is at p + 1."""
_NO_KEY = bytes(KEY_BYTES)


class HeldKeys:
    """Keys of 32 bytes and their pages, no two keys with the same. Cost: every method O(1) a key or page, unless it says more.

    Args:
        held: keys and pages, the least recently used first.
        room: pages from 0 on that will be held; `grow` makes more.
    """

    def __init__(self, held: Iterable[tuple[bytes, int]] = (), room: int = 0) -> None:
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._keys = bytearray(KEY_BYTES * room)
        self._older, self._newer = array("q", bytes(8 * (room + 1))), array("q", bytes(8 * (room + 1)))
        self._count = 0
        for key, page in held:
            self.add(key, page)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        return key in self._shards[key[0]]

    @property
    def room(self) -> int:
        """Pages that can be held, those from 0 on."""
        return len(self._newer) - 1

    def grow(self) -> None:
        """Room for one page more."""
        self._keys += _NO_KEY
        self._older.append(0)
        self._newer.append(0)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The page of each key, or NOWHERE."""
        shards = self._shards
        return [shards[key[0]].get(key, NOWHERE) for key in keys]

    def use(self, pages: Iterable[int]) -> None:
        """These pages, which are held, are used now, one after the other."""
        older, newer = self._older, self._newer
        for page in pages:
            at, youngest = page + 1, older[_END]
            if at != youngest:
                before, behind = older[at], newer[at]
                newer[before], older[behind] = behind, before
                newer[youngest], older[at] = at, youngest
                newer[at], older[_END] = _END, at

    def add(self, key: bytes, page: int) -> None:
        """A key that holds no page holds this one, which no key holds, from now on."""
        self._shards[key[0]][key] = page
        self._keys[KEY_BYTES * page : KEY_BYTES * (page + 1)] = key
        self._count += 1
        at, youngest = page + 1, self._older[_END]
        self._newer[youngest], self._older[at] = at, youngest
        self._newer[at], self._older[_END] = _END, at

    def remove(self, key: bytes) -> int:
        """The page that a key held until now; NOWHERE if it held none."""
        page = self._shards[key[0]].pop(key, NOWHERE)
        if page >= 0:
            before, behind = self._older[page + 1], self._newer[page + 1]
            self._newer[before], self._older[behind] = behind, before
            self._count -= 1
        return page

    def oldest(self) -> tuple[bytes, int]:
        """The least recently used key and its page; there must be one."""
        assert self._count
        page = self._newer[_END] - 1
        return self._key(page), page

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Keys and their pages, the least recently used first, while nothing changes. Cost: O(keys)."""
        at = self._newer[_END]
        while at != _END:
            yield self._key(at - 1), at - 1
            at = self._newer[at]

    def _key(self, page: int) -> bytes:
        return bytes(self._keys[KEY_BYTES * page : KEY_BYTES * (page + 1)])


class RefusedError(Exception):
    """The service does not do what it was asked. `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a namespace's region in the file."""

    format: str
    stride_bytes: int
    page_count: int


@dataclass(frozen=True, slots=True)
class StoredNamespace:
    """A namespace as it is on disk: its number there, and its keys with their pages, the least recently used first."""

    number: int
    shape: Shape
    held: dict[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRank:
    """A rank as it is on disk, its namespaces in the order of the file."""

    epoch: int
    namespaces: dict[str, StoredNamespace] = field(default_factory=dict)


class Rank:
    """A rank while the service runs.

    Args:
        stored: as it is on disk.
        quiet_until: before that no page is handed out.
    """

    def __init__(self, stored: StoredRank, quiet_until: float) -> None:
        self.epoch = stored.epoch
        self.quiet_until = quiet_until
        self.numbers = {name: of.number for name, of in stored.namespaces.items()}
        self.shapes = {name: of.shape for name, of in stored.namespaces.items()}
        self.tables: Mapping[str, PageTable] = {
            name: PageTable(of.shape.page_count, of.held) for name, of in stored.namespaces.items()
        }

    @property
    def is_untouched(self) -> bool:
        """Whether no page of it was ever handed out."""
        return all(table.gauges()["free"] == table.page_count for table in self.tables.values())

    @property
    def is_in_use(self) -> bool:
        """Whether somebody reads, writes, or may be writing."""
        return any(table.is_in_use for table in self.tables.values())

    def described(self) -> str:
        """Its namespaces in words."""
        return ", ".join(f"{name}: {s.page_count} pages of {s.stride_bytes} bytes" for name, s in self.shapes.items())

    def stats(self) -> dict[str, Any]:
        """Counts and gauges by namespace."""
        return {
            name: asdict(table.counters) | table.gauges() | {"stride_bytes": self.shapes[name].stride_bytes}
            for name, table in self.tables.items()
        }
