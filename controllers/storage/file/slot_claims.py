"""Where new values go: an empty entry of each key's bucket, and what its bucket loses for it; also on a full disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count

from unified_tree.controllers.storage.file.file_faults import is_no_room
from unified_tree.controllers.storage.file.file_limits import TableSettings
from unified_tree.controllers.storage.file.python_scan import FRESH, WRITTEN
from unified_tree.controllers.storage.file.table_entry import EMPTIED, ENTRY_BYTES, entry, last_use
from unified_tree.controllers.storage.file.table_index import TableIndex, TableShape, entry_of
from unified_tree.controllers.storage.storage_engine import Outcome

try:
    from unified_tree.controllers.storage.file.bucket_scan import scan
except ImportError:
    from unified_tree.controllers.storage.file.python_scan import scan

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
