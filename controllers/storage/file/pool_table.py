"""One pool's values on disk: a hash table in two files, read and written with `pread` and `pwrite` only.

`<hex of the format digest>.v1.index` is described in `table_shape` and `table_entry`. `<the same>.v1.pages` holds the value of
slot s at s * stride, followed by zeros up to the next multiple of 4096. Both are sparse and grow as they are used.

A writer, holding the writer lock, empties the entry, writes the value, then writes the entry with a new generation. A reader
takes no lock: it reads the entry, the value, and the entry again; if that is the same to the byte, nobody wrote in between.
A process that is killed leaves an empty entry behind. A power failure may keep the entry and lose part of the value, as the two
files reach the disk in any order; with `sync` they do not, without it the seal of `CheckedStorage` tells.

Rejected: a mapped index or store (LMDB among them: fast, but a truncated or damaged file ends the process with SIGBUS); a
log with an index in memory (each process would have to follow the others' logs, and a start reads all of them).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from itertools import count

from unified_tree.controllers.storage.file.table_entry import (
    EMPTY,
    ENTRY_BYTES,
    LAST_USE_AT,
    STABLE_BYTES,
    LastUses,
    entry,
    way_of,
)
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES, TableShape
from unified_tree.controllers.storage.file.trouble_log import TroubleLog, is_no_room
from unified_tree.controllers.storage.file.writer_lock import WriterLock
from unified_tree.controllers.storage.storage_engine import Outcome

REFRESH_NS = 1_000_000_000
"""A use is written down when the last one is longer ago: recency is known to a second, and hot values cost no writes."""
_FULL_NS = 10_000_000_000
"""After the disk was full, slots that were never written are left alone for so long."""
_HELD_BYTES = 8 << 20
"""At most so much, but at least one value, is written while the writer lock is held."""


class PoolTable:
    """The open table of one pool.

    Args:
        index, pages: descriptors of its files, owned: `close` closes them.
        shape: of the table.
        sync: put returns when the values would survive a power failure.
        clock_ns: nanoseconds since 1970.
        trouble: told what fails.

    No method raises OSError. `put`, `remove` and `clear` raise StorageError in a fork of the process that made the table.
    """

    def __init__(
        self, index: int, pages: int, shape: TableShape, *, sync: bool, clock_ns: Callable[[], int], trouble: TroubleLog
    ) -> None:
        self._index = index
        self._pages = pages
        self._shape = shape
        self._sync = sync
        self._clock_ns = clock_ns
        self._trouble = trouble
        self._lock = WriterLock(pages)
        self._generations = count(int.from_bytes(os.urandom(8), "little") >> 1)
        self._uses = LastUses(shape.ways)
        self._ways, self._buckets = shape.ways, shape.buckets
        self._bucket_bytes = shape.ways * ENTRY_BYTES
        self._stride_bytes, self._value_bytes = shape.stride_bytes, shape.value_bytes
        self._padding = bytes(shape.stride_bytes - shape.value_bytes)
        self._step = max(1, _HELD_BYTES // shape.stride_bytes)
        self._full_until_ns = 0

    def has(self, key: bytes) -> bool:
        """Whether a value is there. Cost: one `pread` of 2 KiB."""
        try:
            first, bucket = self._bucket(key)
        except OSError as error:
            self._trouble.failed("read", error)
            return False
        return way_of(key, bucket, first) >= 0

    def get(self, key: bytes, page: memoryview) -> Outcome:
        """Read a value into a page: DONE, MISSING or FAILED. Cost: three `pread`, one of them of the value."""
        try:
            first, bucket = self._bucket(key)
            way = way_of(key, bucket, first)
            if way < 0:
                return Outcome.MISSING
            slot, at = first + way, way * ENTRY_BYTES
            read = os.preadv(self._pages, (page,), slot * self._stride_bytes)
            again = os.pread(self._index, STABLE_BYTES, HEADER_BYTES + slot * ENTRY_BYTES)
        except OSError as error:
            self._trouble.failed("read", error)
            return Outcome.FAILED
        self._trouble.succeeded("read")
        if read != self._value_bytes or again != bucket[at : at + STABLE_BYTES]:
            return Outcome.MISSING
        self._touch(bucket, way, slot)
        return Outcome.DONE

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        """Store values: DONE, PRESENT, DROPPED or FAILED for each. Cost: a `pread` and at most three `pwrite` a value."""
        outcomes: list[Outcome] = []
        for begin in range(0, len(keys), self._step):
            some = slice(begin, begin + self._step)
            outcomes += self._locked(keys[some], pages[some])
        return outcomes

    def remove(self, keys: Sequence[bytes]) -> bool:
        """Empty the entries of these keys; whether that could be done."""
        try:
            if not self._lock.acquire():
                return False
            try:
                for key in keys:
                    first, bucket = self._bucket(key)
                    while (way := way_of(key, bucket, first)) >= 0:
                        self._write_entry(first + way, EMPTY)
                        bucket = bucket[: way * ENTRY_BYTES] + EMPTY + bucket[(way + 1) * ENTRY_BYTES :]
            finally:
                self._lock.release()
        except OSError as error:
            self._trouble.failed("write", error)
            return False
        return True

    def clear(self) -> bool:
        """Empty all entries and give the disk its room back; whether that could be done."""
        try:
            if not self._lock.acquire():
                return False
            try:
                os.ftruncate(self._index, HEADER_BYTES)
                os.ftruncate(self._pages, 0)
            finally:
                self._lock.release()
        except OSError as error:
            self._trouble.failed("write", error)
            return False
        return True

    def close(self) -> None:
        """Close the files, once."""
        os.close(self._index)
        os.close(self._pages)

    def _bucket(self, key: bytes) -> tuple[int, bytes]:
        """The key's bucket and the slot of its first entry; what lies beyond the end of the file is empty."""
        first = int.from_bytes(key[:8], "little") % self._buckets * self._ways
        found = os.pread(self._index, self._bucket_bytes, HEADER_BYTES + first * ENTRY_BYTES)
        return first, found if len(found) == self._bucket_bytes else found.ljust(self._bucket_bytes, b"\0")

    def _touch(self, bucket: bytes, way: int, slot: int) -> None:
        """Write down that a value was used. The entry may be another's by now, which then is kept a little longer."""
        now = self._clock_ns()
        if not 0 <= now - self._uses.of(bucket, way) < REFRESH_NS:
            try:
                os.pwrite(self._index, now.to_bytes(8, "little"), HEADER_BYTES + slot * ENTRY_BYTES + LAST_USE_AT)
            except OSError as error:
                self._trouble.failed("write", error)

    def _locked(self, keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[Outcome]:
        try:
            if not self._lock.acquire():
                self._trouble.failed("write", "another process is writing for too long")
                return [Outcome.DROPPED] * len(keys)
        except OSError as error:
            return [self._failure(error)] * len(keys)
        try:
            return list(map(self._write, keys, pages))
        finally:
            self._lock.release()

    def _write(self, key: bytes, page: memoryview) -> Outcome:
        """Empty the entry that is to be replaced, write the value, then the entry."""
        try:
            first, bucket = self._bucket(key)
            way = way_of(key, bucket, first)
            if way >= 0:
                self._touch(bucket, way, first + way)
                return Outcome.PRESENT
            now = self._clock_ns()
            way = self._uses.victim(bucket, now, rather_used=now < self._full_until_ns)
            slot, at = first + way, way * ENTRY_BYTES
            if bucket[at : at + ENTRY_BYTES] != EMPTY:
                self._write_entry(slot, EMPTY)
            written = os.pwritev(self._pages, (page, self._padding), slot * self._stride_bytes)
            if written != self._stride_bytes:
                raise OSError(errno.ENOSPC, f"only {written} of {self._stride_bytes} bytes were written")
            if self._sync:
                os.fdatasync(self._pages)
            self._write_entry(slot, entry(key, next(self._generations), slot, now))
        except OSError as error:
            return self._failure(error)
        self._trouble.succeeded("write")
        return Outcome.DONE

    def _write_entry(self, slot: int, made: bytes) -> None:
        os.pwrite(self._index, made, HEADER_BYTES + slot * ENTRY_BYTES)
        if self._sync:
            os.fdatasync(self._index)

    def _failure(self, error: OSError) -> Outcome:
        self._trouble.failed("write", error)
        if not is_no_room(error):
            return Outcome.FAILED
        self._full_until_ns = self._clock_ns() + _FULL_NS
        return Outcome.DROPPED
