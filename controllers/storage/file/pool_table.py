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

A writer puts values of some keys of different buckets at a time. First their buckets are read, then all values are written,
then all entries: three short loops, each of which stays in the processor's caches. A crash between them loses those values and
nothing else.

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

import errno
import os
from collections.abc import Callable, Sequence
from itertools import count

from unified_tree.controllers.storage.file.directory_room import DirectoryRoom, OwnTable, WriterLock
from unified_tree.controllers.storage.file.file_limits import TableSettings, is_no_room
from unified_tree.controllers.storage.file.python_scan import FRESH, WRITTEN
from unified_tree.controllers.storage.file.table_entry import EMPTIED, ENTRY_BYTES, STABLE_BYTES, entry, last_use
from unified_tree.controllers.storage.file.table_index import HEADER_BYTES, TableIndex, TableShape, entry_of
from unified_tree.controllers.storage.storage_engine import Outcome

try:
    from unified_tree.controllers.storage.file.bucket_scan import scan
except ImportError:
    from unified_tree.controllers.storage.file.python_scan import scan

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


SPARE_WAYS = 8
"""Buckets of so many entries keep one empty; in smaller ones it would be missed."""
Claim = tuple[int, int, bool, int, bytes]
"""Room for one value: its place in the batch; its slot, whose entry is empty; whether that has room on the disk already; and
the slot from whose entry on the index is written when the value is, and with what. Plain, for there is one a page."""


class SlotClaims:
    """Chooses slots; the caller holds the writer lock.

    Args:
        index: of the table.
        shape: of the table.
        settings: of the engine.
    """

    def __init__(
        self,
        index: TableIndex,
        shape: TableShape,
        settings: TableSettings,
    ) -> None:
        self._index = index
        self._keeps_spare = shape.ways >= SPARE_WAYS
        self._sync = settings.sync
        self._clock_ns = settings.clock_ns
        self._faults = settings.faults
        self._refresh_ns, self._full_pause_ns = settings.limits.refresh_ns, settings.limits.full_pause_ns
        self._generations = count(int.from_bytes(os.urandom(8), "little") >> 1)
        self._full_until_ns = self._refuse_until_ns = 0

    @property
    def is_disk_full(self) -> bool:
        """Whether it was a short time ago: then one page after another shows what can still be done."""
        return self._clock_ns() < self._full_until_ns

    def forget_full(self) -> None:
        """There is room again."""
        self._full_until_ns = self._refuse_until_ns = 0

    def claim(self, at: int, first: int, key: bytes, now: int, *, may_grow: bool) -> Claim | Outcome:
        """Room for the value at one place of the batch, whose bucket begins with slot `first`; or PRESENT, or DROPPED.

        Without `may_grow` the table takes no further room on the disk. No other claim on the same bucket may be open.
        """
        try:
            bucket = self._index.bucket(first)
            if found := entry_of(key, bucket, first):
                if not 0 <= now - last_use(found[1]) < self._refresh_ns:
                    self._index.touch(found[0], now)
                return Outcome.PRESENT
            if now < self._refuse_until_ns:
                return Outcome.DROPPED
            kind, way, empties, victim = scan(bucket, now)
            if kind < (FRESH if may_grow and now >= self._full_until_ns else WRITTEN) and victim >= 0:
                self._index.write(first + victim, EMPTIED)
                if self._sync:
                    os.fdatasync(self._index.descriptor)
                bucket = bucket[: victim * ENTRY_BYTES] + EMPTIED + bucket[(victim + 1) * ENTRY_BYTES :]
                kind, way, empties, victim = scan(bucket, now)
        except OSError as error:
            return self.failure(error)
        if not may_grow and kind != WRITTEN:
            self._faults.failed("write", "the directory is at its bound, or another process locks it for too long")
            return Outcome.DROPPED
        made = entry(key, next(self._generations), first + way, now)
        if empties > 1 or not self._keeps_spare:
            return at, first + way, kind == WRITTEN, first + way, made
        if way < victim:
            made += bucket[(way + 1) * ENTRY_BYTES : victim * ENTRY_BYTES] + EMPTIED
            return at, first + way, kind == WRITTEN, first + way, made
        made = EMPTIED + bucket[(victim + 1) * ENTRY_BYTES : way * ENTRY_BYTES] + made
        return at, first + way, kind == WRITTEN, first + victim, made

    def failure(self, error: OSError, *, was_written: bool = False) -> Outcome:
        """What becomes of a page that could not be written.

        On a full disk new values go where old ones lie; if not even that is possible, nowhere, or every try would cost one.
        """
        self._faults.failed("write", error)
        if not is_no_room(error):
            return Outcome.FAILED
        self._full_until_ns = self._clock_ns() + self._full_pause_ns
        if was_written:
            self._refuse_until_ns = self._full_until_ns
        return Outcome.DROPPED


def rounds_of_distinct(buckets: Sequence[int]) -> list[list[int]]:
    """Positions of a batch, divided into rounds in each of which no bucket occurs twice.

    >>> rounds_of_distinct([7, 8, 7, 9, 7])
    [[0, 1, 3], [2], [4]]
    """
    rounds: list[list[int]] = []
    occurred: dict[int, int] = {}
    for position, bucket in enumerate(buckets):
        at = occurred.get(bucket, 0)
        occurred[bucket] = at + 1
        if at == len(rounds):
            rounds.append([])
        rounds[at].append(position)
    return rounds
