"""The values of a table that move into one of another size, the most recently used first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unified_tree.controllers.storage.file.slot_claims import SPARE_WAYS
from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES, entry, is_valid, last_use
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES

if TYPE_CHECKING:
    from unified_tree.controllers.storage.file.directory_room import OwnTable
    from unified_tree.controllers.storage.file.table_settings import TableSettings

_READ_BYTES = 1 << 20


def move_values(old: OwnTable, new: OwnTable, settings: TableSettings) -> tuple[int, int]:
    """Copy values of one table to another that is empty; how many, and how many did not fit or could not be read or written.

    Raises OSError if the index cannot be read. Cost: O(entries of the old table), and at most `move_bytes` of values.
    """
    shape = new.shape
    most = settings.limits.move_bytes // shape.written_bytes
    kept_ways = shape.ways - 1 if shape.ways >= SPARE_WAYS else shape.ways
    taken: dict[int, int] = {}
    found = sorted(_entries(old), reverse=True)
    moved = 0
    page = memoryview(bytearray(shape.value_bytes))
    padding = bytes(shape.written_bytes - shape.value_bytes)
    for generation, (used_ns, old_slot, key) in enumerate(found, start=1):
        bucket = int.from_bytes(key[:8], "little") % shape.buckets
        way = taken.get(bucket, 0)
        if way == kept_ways or moved == most:
            continue
        slot = bucket * shape.ways + way
        try:
            if os.preadv(old.pages, (page,), old_slot * old.shape.stride_bytes) != shape.value_bytes:
                continue
            if os.pwritev(new.pages, (page, padding), slot * shape.stride_bytes) != shape.written_bytes:
                break
            os.pwrite(new.index, entry(key, generation, slot, used_ns), HEADER_BYTES + slot * ENTRY_BYTES)
        except OSError as error:
            settings.faults.failed("write", error)
            break
        taken[bucket] = way + 1
        moved += 1
    return moved, len(found) - moved


def _entries(table: OwnTable) -> Iterator[tuple[int, int, bytes]]:
    """Last use, slot and key of every valid entry."""
    slot, slots = 0, table.shape.slots
    while slot < slots:
        read = os.pread(table.index, min(_READ_BYTES, (slots - slot) * ENTRY_BYTES), HEADER_BYTES + slot * ENTRY_BYTES)
        if len(read) < ENTRY_BYTES:
            return
        for at in range(0, len(read) // ENTRY_BYTES * ENTRY_BYTES, ENTRY_BYTES):
            one = read[at : at + ENTRY_BYTES]
            if any(one[:8]) and is_valid(one, slot):
                yield last_use(one), slot, one[:32]
            slot += 1
