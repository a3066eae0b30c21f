"""One pool's values on disk: a hash table in two files, read and written with `pread` and `pwrite` only.

`<hex of the format digest>.v2.index` is described in `table_index` and `table_entry`. `<the same>.v2.pages` holds the value
of slot s at s * stride, followed by zeros up to the next multiple of 4096. Both are sparse and grow as they are used; files
of other versions are other tables, which nobody uses.

A bucket of eight entries or more keeps one of them empty. A writer, holding the writer lock, writes the value into the slot
of the empty entry, and then, in one `pwrite` of all entries from the one to the other, that entry with a new generation and
the least recently used one emptied. So a process that is killed loses what it was writing and nothing else: neither entry is
larger than a sector, and both orders of their arrival are a bucket that can be used. Where no entry is empty, because the
bucket is small or was damaged, one is emptied first; so is one on a full disk, where new values go to slots that were written
to before.

A reader takes no lock: it reads the bucket, the value, and the entry again; if that is the same to the byte, nobody wrote in
between. A page that is verified needs no second look, for its seal is that of the key and of every byte, and values under a
key do not change; only one that fails does, to tell a bad page from one that was being replaced. A reader writes down when a
value was used, without a lock; the writer may overwrite that with what it was before, or find it in an entry that it emptied,
which then counts as used until it is the oldest. A power failure may keep an entry and lose part of its value, as the two
files reach the disk in any order; with `sync` they do not, without it the seal of `CheckedStorage` tells.

Rejected: a mapped index or store (LMDB among them: it reads faster, but 15 of 150 flipped bits in its file ended the process
with SIGBUS); a log with an index in memory (each process would have to follow the others' logs, and a start reads all of
them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from unified_tree.controllers.storage.file.directory_room import DirectoryRoom, OwnTable
from unified_tree.controllers.storage.file.file_limits import TableSettings
from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES, STABLE_BYTES, last_use
from unified_tree.controllers.storage.file.table_index import HEADER_BYTES, TableIndex, entry_of
from unified_tree.controllers.storage.file.table_writer import TableWriter
from unified_tree.controllers.storage.storage_engine import Outcome

Verify = Callable[[memoryview, bytes], bool]
"""Whether a page that was read is what was stored under this key."""


class PoolTable:
    """The open table of one pool.

    Args:
        table: its files, owned: `close` closes them.
        room: of the directory.
        settings: of the engine.

    Attributes:
        writer: puts, removes and clears.

    No method raises OSError.
    """

    def __init__(
        self,
        table: OwnTable,
        room: DirectoryRoom,
        settings: TableSettings,
    ) -> None:
        shape = table.shape
        self._index = TableIndex(table.index, shape, settings.faults)
        self._pages = table.pages
        self._clock_ns = settings.clock_ns
        self._faults = settings.faults
        self._refresh_ns = settings.limits.refresh_ns
        self._stride_bytes, self._value_bytes = shape.stride_bytes, shape.value_bytes
        self.writer = TableWriter(self._index, table, room, settings)

    def has(self, keys: Sequence[bytes]) -> list[bool | None]:
        """Whether values are there; None where the index cannot be read. Cost: one `pread` of 2 KiB a key."""
        places = map(self._find, keys, self._index.first_slots(keys))
        return [None if place is Outcome.FAILED else place is not Outcome.MISSING for place in places]

    def get(self, keys: Sequence[bytes], pages: Sequence[memoryview], verify: Verify | None) -> list[Outcome]:
        """Read values into pages: DONE, MISSING or FAILED for each, or CORRUPT where `verify` says so of a page and its key.

        Cost: a `pread` of a bucket and one of the value itself; without `verify`, another of an entry.
        """
        places = list(map(self._find, keys, self._index.first_slots(keys)))
        outcomes = [
            place if isinstance(place, Outcome) else self._read(place[0], key, page, verify)
            for place, key, page in zip(places, keys, pages, strict=True)
        ]
        now, proven = self._clock_ns(), None if verify is None else Outcome.DONE
        for at, place in enumerate(places):
            if isinstance(place, Outcome):
                continue
            if outcomes[at] is not proven:
                outcomes[at] = self._confirmed(outcomes[at], *place)
            if not 0 <= now - last_use(place[1]) < self._refresh_ns and outcomes[at] is Outcome.DONE:
                self._index.touch(place[0], now)
        if Outcome.DONE in outcomes:
            self._faults.succeeded("read")
        return outcomes

    def close(self) -> None:
        """Close the files, once."""
        os.close(self._index.descriptor)
        os.close(self._pages)

    def _find(self, key: bytes, first: int) -> tuple[int, bytes] | Outcome:
        """The slot of a value and its entry, or MISSING or FAILED."""
        try:
            return entry_of(key, self._index.bucket(first), first) or Outcome.MISSING
        except OSError as error:
            self._faults.failed("read", error)
            return Outcome.FAILED

    def _read(self, slot: int, key: bytes, page: memoryview, verify: Verify | None) -> Outcome:
        try:
            read = os.preadv(self._pages, (page,), slot * self._stride_bytes)
        except OSError as error:
            self._faults.failed("read", error)
            return Outcome.FAILED
        if read != self._value_bytes:
            return Outcome.MISSING
        return Outcome.DONE if verify is None or verify(page, key) else Outcome.CORRUPT

    def _confirmed(self, outcome: Outcome, slot: int, found: bytes) -> Outcome:
        """The outcome of reading a slot, or MISSING if its entry is not the same any more."""
        if outcome is Outcome.MISSING or outcome is Outcome.FAILED:
            return outcome
        try:
            again = os.pread(self._index.descriptor, STABLE_BYTES, HEADER_BYTES + slot * ENTRY_BYTES)
        except OSError as error:
            self._faults.failed("read", error)
            return Outcome.FAILED
        return outcome if again == found[:STABLE_BYTES] else Outcome.MISSING
