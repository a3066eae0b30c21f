"""The writing half of a table: what `pool_table` says a writer does, a batch at a time.

First all entries that have to go are emptied, then all values are written, then all entries: three short loops, each of which
stays in the processor's caches. A crash between them loses the values of one batch and those that they replaced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from itertools import count

from unified_tree.controllers.storage.file.table_entry import EMPTY, ENTRY_BYTES, LastUses, entry, way_of
from unified_tree.controllers.storage.file.table_index import TableIndex
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES, TableShape
from unified_tree.controllers.storage.file.trouble_log import TroubleLog, is_no_room
from unified_tree.controllers.storage.file.writer_lock import WriterLock
from unified_tree.controllers.storage.storage_engine import Outcome

Seal = Callable[[memoryview, bytes], None]
"""Called with a page and its key before it is written."""
_FULL_NS = 10_000_000_000
"""For so long after the disk was full, new values go where old ones lie; if not even those can be overwritten, nowhere."""
_HELD_BYTES = 8 << 20
"""At most so much is written while the writer lock is held; but one value at least, and no more values than a bucket has."""


class TableWriter:
    """Puts values into one table, removes them, and clears it.

    Args:
        index: of the table.
        pages: descriptor of the pages file, not owned; it is locked.
        shape: of the table.
        sync: put returns when the values would survive a power failure.
        clock_ns: nanoseconds since 1970.
        trouble: told what fails.

    No method raises OSError; all raise StorageError in a fork of the process that made the writer.
    """

    def __init__(
        self,
        index: TableIndex,
        pages: int,
        shape: TableShape,
        *,
        sync: bool,
        clock_ns: Callable[[], int],
        trouble: TroubleLog,
    ) -> None:
        self._index = index
        self._pages = pages
        self._sync = sync
        self._clock_ns = clock_ns
        self._trouble = trouble
        self._lock = WriterLock(pages)
        self._generations = count(int.from_bytes(os.urandom(8), "little") >> 1)
        self._uses = LastUses(shape.ways)
        self._stride_bytes = shape.stride_bytes
        self._padding = bytes(shape.stride_bytes - shape.value_bytes)
        self._step = max(1, min(shape.ways, _HELD_BYTES // shape.stride_bytes))
        self._full_until_ns = self._refuse_until_ns = 0

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Seal | None) -> list[Outcome]:
        """Store values: DONE, PRESENT, DROPPED or FAILED for each; `seal` is called with a page and its key first.

        Cost: a `pread` and at most three `pwrite` a value.
        """
        outcomes: list[Outcome] = []
        while len(outcomes) < len(keys):
            step = self._step if self._clock_ns() >= self._full_until_ns else 1
            some = slice(len(outcomes), len(outcomes) + step)
            outcomes += self._put_some(keys[some], pages[some], seal)
        return outcomes

    def remove(self, keys: Sequence[bytes]) -> bool:
        """Empty the entries of these keys; whether that could be done."""
        try:
            if not self._lock.acquire():
                return False
            try:
                for key in keys:
                    first, bucket = self._index.bucket(key)
                    while (way := way_of(key, bucket, first)) >= 0:
                        self._index.write(first + way, EMPTY)
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
                os.ftruncate(self._index.descriptor, HEADER_BYTES)
                os.ftruncate(self._pages, 0)
                self._full_until_ns = self._refuse_until_ns = 0
            finally:
                self._lock.release()
        except OSError as error:
            self._trouble.failed("write", error)
            return False
        return True

    def _put_some(self, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Seal | None) -> list[Outcome]:
        try:
            if not self._lock.acquire():
                self._trouble.failed("write", "another process is writing for too long")
                return [Outcome.DROPPED] * len(keys)
        except OSError as error:
            return [self._failure(error)] * len(keys)
        try:
            taken: dict[int, set[int]] = {}
            replaced: set[int] = set()
            slots = self._flushed(self._index.descriptor, [self._claim(key, taken, replaced) for key in keys])
            filled = [
                slot if isinstance(slot, Outcome) else self._fill(slot, key, page, seal, replaces=slot in replaced)
                for slot, key, page in zip(slots, keys, pages, strict=True)
            ]
            filled = self._flushed(self._pages, filled)
            published = [
                slot if isinstance(slot, Outcome) else self._publish(slot, key) for slot, key in zip(filled, keys, strict=True)
            ]
            published = self._flushed(self._index.descriptor, published)
            return [slot if isinstance(slot, Outcome) else Outcome.DONE for slot in published]
        finally:
            self._lock.release()

    def _claim(self, key: bytes, taken: dict[int, set[int]], replaced: set[int]) -> int | Outcome:
        """A slot whose entry is empty now; or PRESENT, or DROPPED where the disk is full.

        Adds to `taken`, the entries that the batch has claimed, by the first slot of their buckets, and to `replaced`, the
        slots of which others had to go.
        """
        try:
            first, bucket = self._index.bucket(key)
            way, now = way_of(key, bucket, first), self._clock_ns()
            if way >= 0:
                self._index.touch(bucket[way * ENTRY_BYTES : (way + 1) * ENTRY_BYTES], first + way, now)
                return Outcome.PRESENT
            if now < self._refuse_until_ns:
                return Outcome.DROPPED
            own = taken.setdefault(first, set())
            way = self._uses.victim(bucket, now, taken=own, rather_used=now < self._full_until_ns)
            slot, at = first + way, way * ENTRY_BYTES
            if bucket[at : at + ENTRY_BYTES] != EMPTY:
                self._index.write(slot, EMPTY)
                replaced.add(slot)
        except OSError as error:
            return self._failure(error)
        own.add(way)
        return slot

    def _fill(self, slot: int, key: bytes, page: memoryview, seal: Seal | None, *, replaces: bool) -> int | Outcome:
        """The slot, its value written."""
        if seal is not None:
            seal(page, key)
        try:
            written = os.pwritev(self._pages, (page, self._padding), slot * self._stride_bytes)
        except OSError as error:
            return self._failure(error, replaces=replaces)
        if written != self._stride_bytes:
            short = OSError(errno.ENOSPC, f"only {written} of {self._stride_bytes} bytes were written")
            return self._failure(short, replaces=replaces)
        return slot

    def _publish(self, slot: int, key: bytes) -> int | Outcome:
        """The slot, its entry written."""
        try:
            made = entry(key, next(self._generations), slot, self._clock_ns())
            self._index.write(slot, made)
        except OSError as error:
            return self._failure(error)
        self._trouble.succeeded("write")
        return slot

    def _flushed(self, descriptor: int, slots: list[int | Outcome]) -> list[int | Outcome]:
        """The same, what was written to the file being on the disk if that is asked for."""
        if self._sync and not all(isinstance(slot, Outcome) for slot in slots):
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                failure = self._failure(error)
                return [slot if isinstance(slot, Outcome) else failure for slot in slots]
        return slots

    def _failure(self, error: OSError, *, replaces: bool = False) -> Outcome:
        """What becomes of a page that could not be written.

        On a full disk new values go where old ones lie; if not even that is possible, nowhere, or every try would cost one.
        """
        self._trouble.failed("write", error)
        if not is_no_room(error):
            return Outcome.FAILED
        self._full_until_ns = self._clock_ns() + _FULL_NS
        if replaces:
            self._refuse_until_ns = self._full_until_ns
        return Outcome.DROPPED
