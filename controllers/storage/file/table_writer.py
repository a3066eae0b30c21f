"""The writing half of a table: what `pool_table` says a writer does, for some keys of different buckets at a time.

First their buckets are read, then all values are written, then all entries: three short loops, each of which stays in the
processor's caches. A crash between them loses those values and nothing else.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from unified_tree.controllers.storage.file.directory_room import DirectoryRoom, OwnTable
from unified_tree.controllers.storage.file.file_limits import TableSettings
from unified_tree.controllers.storage.file.slot_claims import Claim, SlotClaims, rounds_of_distinct
from unified_tree.controllers.storage.file.table_entry import EMPTIED
from unified_tree.controllers.storage.file.table_index import HEADER_BYTES, TableIndex, entry_of
from unified_tree.controllers.storage.file.writer_lock import WriterLock
from unified_tree.controllers.storage.storage_engine import Outcome

Seal = Callable[[memoryview, bytes], None]
"""Called with a page and its key before it is written."""


class TableWriter:
    """Puts values into one table, removes them, and clears it.

    Args:
        index: of the table.
        table: its files, not owned; that of the pages is locked.
        room: of the directory.
        settings: of the engine.

    No method raises OSError; all raise StorageError in a fork of the process that made the writer.
    """

    def __init__(
        self,
        index: TableIndex,
        table: OwnTable,
        room: DirectoryRoom,
        settings: TableSettings,
    ) -> None:
        shape = table.shape
        self._index = index
        self._table = table
        self._room = room
        self._pages = table.pages
        self._sync = settings.sync
        self._clock_ns = settings.clock_ns
        self._faults = settings.faults
        self._claims = SlotClaims(index, shape, settings)
        self._lock = WriterLock(table.pages, settings.limits.write_wait_s)
        self._stride_bytes, self._written_bytes = shape.stride_bytes, shape.written_bytes
        self._padding = bytes(shape.written_bytes - shape.value_bytes)
        self._step = max(1, settings.limits.bytes_per_lock // shape.written_bytes)

    def put(self, keys: Sequence[bytes], pages: Sequence[memoryview], seal: Seal | None) -> list[Outcome]:
        """Store values: DONE, PRESENT, DROPPED or FAILED for each; `seal` is called with a page and its key first.

        Cost: a `pread` and a `pwrite` of the index a value, and a `pwritev` of the value itself.
        """
        firsts, outcomes = self._index.first_slots(keys), [Outcome.DROPPED] * len(keys)
        for left in rounds_of_distinct(firsts):
            while left:
                step = 1 if self._claims.is_disk_full else self._step
                some, left = left[:step], left[step:]
                self._put_some(some, firsts, keys, pages, seal, outcomes)
        return outcomes

    def remove(self, keys: Sequence[bytes]) -> bool:
        """Empty the entries of these keys; whether that could be done."""

        def empty() -> None:
            for key, first in zip(keys, self._index.first_slots(keys), strict=True):
                while found := entry_of(key, self._index.bucket(first), first):
                    self._index.write(found[0], EMPTIED)

        return self._done_locked(empty)

    def clear(self) -> bool:
        """Empty all entries and give the disk its room back; whether that could be done."""

        def truncate() -> None:
            os.ftruncate(self._index.descriptor, HEADER_BYTES)
            os.ftruncate(self._pages, 0)
            self._claims.forget_full()

        return self._done_locked(truncate)

    def _done_locked(self, change: Callable[[], None]) -> bool:
        """Whether the writer lock was acquired, and the change made."""
        try:
            if not self._lock.acquire():
                return False
            try:
                change()
            finally:
                self._lock.release()
        except OSError as error:
            self._faults.failed("write", error)
            return False
        return True

    def _put_some(
        self,
        some: list[int],
        firsts: Sequence[int],
        keys: Sequence[bytes],
        pages: Sequence[memoryview],
        seal: Seal | None,
        outcomes: list[Outcome],
    ) -> None:
        """Put those of a batch, of which no two have the same bucket, and say in `outcomes` what became of them."""
        failure = self._begin()
        if failure is not None:
            for at in some:
                outcomes[at] = failure
            return
        try:
            claims = self._claimed(some, firsts, keys, outcomes, may_grow=True)
            growing = [claim[0] for claim in claims if not claim[2]]
            with self._room.growth(self._table, len(growing)) as may_grow:
                if not may_grow:
                    claims = [claim for claim in claims if claim[2]]
                    claims += self._claimed(growing, firsts, keys, outcomes, may_grow=False)
                claims = self._flushed(self._pages, self._filled(claims, keys, pages, seal, outcomes), outcomes)
                claims = self._flushed(self._index.descriptor, self._published(claims, outcomes), outcomes)
            for claim in claims:
                outcomes[claim[0]] = Outcome.DONE
            if claims:
                self._faults.succeeded("write")
        except OSError as error:  # the directory cannot be looked at
            for at in some:
                outcomes[at] = self._claims.failure(error)
        finally:
            self._lock.release()

    def _claimed(
        self, some: list[int], firsts: Sequence[int], keys: Sequence[bytes], outcomes: list[Outcome], *, may_grow: bool
    ) -> list[Claim]:
        """Room for those of a batch, of which no two have the same bucket; `outcomes` says what becomes of the others."""
        now, claims = self._clock_ns(), list[Claim]()
        for at in some:
            found = self._claims.claim(at, firsts[at], keys[at], now, may_grow=may_grow)
            if isinstance(found, Outcome):
                outcomes[at] = found
            else:
                claims.append(found)
        return claims

    def _begin(self) -> Outcome | None:
        """Acquire the writer lock; what becomes of all pages if that could not be done."""
        try:
            if self._lock.acquire():
                return None
        except OSError as error:
            return self._claims.failure(error)
        self._faults.failed("write", "another process is writing for too long")
        return Outcome.DROPPED

    def _filled(
        self,
        claims: list[Claim],
        keys: Sequence[bytes],
        pages: Sequence[memoryview],
        seal: Seal | None,
        outcomes: list[Outcome],
    ) -> list[Claim]:
        """The claims whose values were written."""
        failed = set()
        for at, slot, was_written, _, _ in claims:
            page = pages[at]
            if seal is not None:
                seal(page, keys[at])
            try:
                written = os.pwritev(self._pages, (page, self._padding), slot * self._stride_bytes)
                if written != self._written_bytes:
                    raise OSError(errno.ENOSPC, f"only {written} of {self._written_bytes} bytes were written")
            except OSError as error:
                outcomes[at] = self._claims.failure(error, was_written=was_written)
                failed.add(at)
        return [claim for claim in claims if claim[0] not in failed] if failed else claims

    def _published(self, claims: list[Claim], outcomes: list[Outcome]) -> list[Claim]:
        """The claims whose entries were written, and in one go with them those emptied that their buckets have to lose."""
        failed = set()
        for at, _, _, from_slot, made in claims:
            try:
                self._index.write(from_slot, made)
            except OSError as error:
                outcomes[at] = self._claims.failure(error)
                failed.add(at)
        return [claim for claim in claims if claim[0] not in failed] if failed else claims

    def _flushed(self, descriptor: int, claims: list[Claim], outcomes: list[Outcome]) -> list[Claim]:
        """The claims, what was written to the file being on the disk if that is asked for; none where that fails."""
        if not self._sync or not claims:
            return claims
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            failure = self._claims.failure(error)
            for at, *_ in claims:
                outcomes[at] = failure
            return []
        return claims
