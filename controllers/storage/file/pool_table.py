"""One pool's values on disk: a hash table in two files, read and written with `pread` and `pwrite` only.

`<hex of the format digest>.v1.index` is described in `table_shape` and `table_entry`. `<the same>.v1.pages` holds the value of
slot s at s * stride, followed by zeros up to the next multiple of 4096. Both are sparse and grow as they are used.

A writer, holding the writer lock, empties the entry, writes the value, then writes the entry with a new generation. A reader
takes no lock: it reads the entry, the value, and the entry again; if that is the same to the byte, nobody wrote in between.
A process that is killed leaves an empty entry behind. A power failure may keep the entry and lose part of the value, as the two
files reach the disk in any order; with `sync` they do not, without it the seal of `CheckedStorage` tells.

Rejected: a mapped index or store (LMDB among them: it reads faster, but 15 of 150 flipped bits in
its file ended the process with SIGBUS); a
log with an index in memory (each process would have to follow the others' logs, and a start reads all of them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES, STABLE_BYTES, way_of
from unified_tree.controllers.storage.file.table_index import TableIndex
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES, TableShape
from unified_tree.controllers.storage.file.table_writer import TableWriter
from unified_tree.controllers.storage.file.trouble_log import TroubleLog
from unified_tree.controllers.storage.storage_engine import Outcome

Verify = Callable[[memoryview, bytes], bool]
"""Whether a page that was read is what was stored under this key."""


class PoolTable:
    """The open table of one pool.

    Args:
        index, pages: descriptors of its files, owned: `close` closes them.
        shape: of the table.
        sync: put returns when the values would survive a power failure.
        clock_ns: nanoseconds since 1970.
        trouble: told what fails.

    Attributes:
        writer: puts, removes and clears.

    No method raises OSError.
    """

    def __init__(
        self, index: int, pages: int, shape: TableShape, *, sync: bool, clock_ns: Callable[[], int], trouble: TroubleLog
    ) -> None:
        self._index = TableIndex(index, shape, trouble)
        self._pages = pages
        self._clock_ns = clock_ns
        self._trouble = trouble
        self._stride_bytes, self._value_bytes = shape.stride_bytes, shape.value_bytes
        self.writer = TableWriter(self._index, pages, shape, sync=sync, clock_ns=clock_ns, trouble=trouble)

    def has(self, key: bytes) -> bool:
        """Whether a value is there. Cost: one `pread` of 2 KiB."""
        try:
            first, bucket = self._index.bucket(key)
        except OSError as error:
            self._trouble.failed("read", error)
            return False
        return way_of(key, bucket, first) >= 0

    def get(self, keys: Sequence[bytes], pages: Sequence[memoryview], verify: Verify | None) -> list[Outcome]:
        """Read values into pages: DONE, MISSING or FAILED for each, or CORRUPT where `verify` says so of a page and its key.

        Cost: three `pread` a value, one of them of the value itself.
        """
        places = list(map(self._find, keys))
        outcomes = [
            place if isinstance(place, Outcome) else self._read(place[0], key, page, verify)
            for place, key, page in zip(places, keys, pages, strict=True)
        ]
        now = self._clock_ns()
        return [
            outcome if isinstance(place, Outcome) else self._confirmed(outcome, *place, now)
            for place, outcome in zip(places, outcomes, strict=True)
        ]

    def close(self) -> None:
        """Close the files, once."""
        os.close(self._index.descriptor)
        os.close(self._pages)

    def _find(self, key: bytes) -> tuple[int, bytes] | Outcome:
        """The slot of a value and its entry, or MISSING or FAILED."""
        try:
            first, bucket = self._index.bucket(key)
        except OSError as error:
            self._trouble.failed("read", error)
            return Outcome.FAILED
        way = way_of(key, bucket, first)
        return Outcome.MISSING if way < 0 else (first + way, bucket[way * ENTRY_BYTES : (way + 1) * ENTRY_BYTES])

    def _read(self, slot: int, key: bytes, page: memoryview, verify: Verify | None) -> Outcome:
        try:
            read = os.preadv(self._pages, (page,), slot * self._stride_bytes)
        except OSError as error:
            self._trouble.failed("read", error)
            return Outcome.FAILED
        if read != self._value_bytes:
            return Outcome.MISSING
        return Outcome.DONE if verify is None or verify(page, key) else Outcome.CORRUPT

    def _confirmed(self, outcome: Outcome, slot: int, found: bytes, now: int) -> Outcome:
        """The outcome of reading a slot, or MISSING if its entry is not the same any more."""
        if outcome is Outcome.MISSING or outcome is Outcome.FAILED:
            return outcome
        try:
            again = os.pread(self._index.descriptor, STABLE_BYTES, HEADER_BYTES + slot * ENTRY_BYTES)
        except OSError as error:
            self._trouble.failed("read", error)
            return Outcome.FAILED
        self._trouble.succeeded("read")
        if again != found[:STABLE_BYTES]:
            return Outcome.MISSING
        self._index.touch(found, slot, now)
        return outcome
