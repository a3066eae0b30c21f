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
    last_use,
    way_of,
)
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES, TableShape
from unified_tree.controllers.storage.file.trouble_log import TroubleLog, is_no_room
from unified_tree.controllers.storage.file.writer_lock import WriterLock
from unified_tree.controllers.storage.storage_engine import Outcome

REFRESH_NS = 1_000_000_000
"""A use is written down when the last one is longer ago: recency is known to a second, and hot values cost no writes."""
_FULL_NS = 10_000_000_000
"""For so long after the disk was full, new values go where old ones lie; if not even those can be overwritten, nowhere."""
_HELD_BYTES = 8 << 20
"""At most so much is written while the writer lock is held; but one value at least, and no more values than a bucket has."""


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
        self._step = max(1, min(shape.ways, _HELD_BYTES // shape.stride_bytes))
        self._full_until_ns = self._refuse_until_ns = 0

    def has(self, key: bytes) -> bool:
        """Whether a value is there. Cost: one `pread` of 2 KiB."""
        try:
            first, bucket = self._bucket(key)
        except OSError as error:
            self._trouble.failed("read", error)
            return False
        return way_of(key, bucket, first) >= 0

    def get(
        self, keys: Sequence[bytes], pages: Sequence[memoryview], verify: Callable[[memoryview, bytes], bool] | None
    ) -> list[Outcome]:
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

    def put(
        self, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Callable[[memoryview, bytes], None] | None
    ) -> list[Outcome]:
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
                    first, bucket = self._bucket(key)
                    while (way := way_of(key, bucket, first)) >= 0:
                        os.pwrite(self._index, EMPTY, HEADER_BYTES + (first + way) * ENTRY_BYTES)
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

    def _find(self, key: bytes) -> tuple[int, bytes] | Outcome:
        """The slot of a value and its entry, or MISSING or FAILED."""
        try:
            first, bucket = self._bucket(key)
        except OSError as error:
            self._trouble.failed("read", error)
            return Outcome.FAILED
        way = way_of(key, bucket, first)
        return Outcome.MISSING if way < 0 else (first + way, bucket[way * ENTRY_BYTES : (way + 1) * ENTRY_BYTES])

    def _read(self, slot: int, key: bytes, page: memoryview, verify: Callable[[memoryview, bytes], bool] | None) -> Outcome:
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
            again = os.pread(self._index, STABLE_BYTES, HEADER_BYTES + slot * ENTRY_BYTES)
        except OSError as error:
            self._trouble.failed("read", error)
            return Outcome.FAILED
        self._trouble.succeeded("read")
        if again != found[:STABLE_BYTES]:
            return Outcome.MISSING
        self._touch(found, slot, now)
        return outcome

    def _touch(self, found: bytes, slot: int, now: int) -> None:
        """Write down that a value was used. The entry may be another's by now, which then is kept a little longer."""
        if not 0 <= now - last_use(found) < REFRESH_NS:
            try:
                os.pwrite(self._index, now.to_bytes(8, "little"), HEADER_BYTES + slot * ENTRY_BYTES + LAST_USE_AT)
            except OSError as error:
                self._trouble.failed("write", error)

    def _put_some(
        self, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Callable[[memoryview, bytes], None] | None
    ) -> list[Outcome]:
        try:
            if not self._lock.acquire():
                self._trouble.failed("write", "another process is writing for too long")
                return [Outcome.DROPPED] * len(keys)
        except OSError as error:
            return [self._failure(error)] * len(keys)
        try:
            taken: dict[int, set[int]] = {}
            replaced: set[int] = set()
            slots = self._flushed(self._index, [self._claim(key, taken, replaced) for key in keys])
            filled = [
                slot if isinstance(slot, Outcome) else self._fill(slot, key, page, seal, replaces=slot in replaced)
                for slot, key, page in zip(slots, keys, pages, strict=True)
            ]
            filled = self._flushed(self._pages, filled)
            published = [
                slot if isinstance(slot, Outcome) else self._publish(slot, key) for slot, key in zip(filled, keys, strict=True)
            ]
            published = self._flushed(self._index, published)
            return [slot if isinstance(slot, Outcome) else Outcome.DONE for slot in published]
        finally:
            self._lock.release()

    def _claim(self, key: bytes, taken: dict[int, set[int]], replaced: set[int]) -> int | Outcome:
        """A slot whose entry is empty now; or PRESENT, or DROPPED where the disk is full.

        Adds to `taken`, the entries that the batch has claimed, by the first slot of their buckets, and to `replaced`, the
        slots of which others had to go.
        """
        try:
            first, bucket = self._bucket(key)
            way, now = way_of(key, bucket, first), self._clock_ns()
            if way >= 0:
                self._touch(bucket[way * ENTRY_BYTES : (way + 1) * ENTRY_BYTES], first + way, now)
                return Outcome.PRESENT
            if now < self._refuse_until_ns:
                return Outcome.DROPPED
            own = taken.setdefault(first, set())
            way = self._uses.victim(bucket, now, taken=own, rather_used=now < self._full_until_ns)
            slot, at = first + way, way * ENTRY_BYTES
            if bucket[at : at + ENTRY_BYTES] != EMPTY:
                os.pwrite(self._index, EMPTY, HEADER_BYTES + slot * ENTRY_BYTES)
                replaced.add(slot)
        except OSError as error:
            return self._failure(error)
        own.add(way)
        return slot

    def _fill(
        self, slot: int, key: bytes, page: memoryview, seal: Callable[[memoryview, bytes], None] | None, *, replaces: bool
    ) -> int | Outcome:
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
            os.pwrite(self._index, made, HEADER_BYTES + slot * ENTRY_BYTES)
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
