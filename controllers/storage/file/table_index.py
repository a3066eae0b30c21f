"""The open index file of a table: buckets in, entries and last uses out."""

from __future__ import annotations

import os
from collections.abc import Sequence

from unified_tree.controllers.storage.file.file_faults import FileFaults
from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES, LAST_USE_AT, is_valid
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES, TableShape

try:
    from unified_tree.controllers.storage.file.bucket_scan import find
except ImportError:
    from unified_tree.controllers.storage.file.python_scan import find


class TableIndex:
    """Reads and writes entries.

    Args:
        descriptor: of the index file, not owned.
        shape: of the table.
        faults: told when a use cannot be written down, which otherwise harms nobody.

    Attributes:
        descriptor: the same.
    """

    def __init__(self, descriptor: int, shape: TableShape, faults: FileFaults) -> None:
        self.descriptor = descriptor
        self._faults = faults
        self._ways, self._buckets = shape.ways, shape.buckets
        self._bucket_bytes = shape.ways * ENTRY_BYTES

    def first_slots(self, keys: Sequence[bytes]) -> list[int]:
        """The slots of the first entries of the keys' buckets."""
        buckets, ways = self._buckets, self._ways
        return [int.from_bytes(key[:8], "little") % buckets * ways for key in keys]

    def bucket(self, first: int) -> bytes:
        """The bucket that begins with this slot; what lies beyond the end of the file is empty. Raises OSError."""
        found = os.pread(self.descriptor, self._bucket_bytes, HEADER_BYTES + first * ENTRY_BYTES)
        return found if len(found) == self._bucket_bytes else found.ljust(self._bucket_bytes, b"\0")

    def write(self, slot: int, made: bytes) -> None:
        """Replace the entries from that of a slot on. Raises OSError."""
        os.pwrite(self.descriptor, made, HEADER_BYTES + slot * ENTRY_BYTES)

    def touch(self, slot: int, now_ns: int) -> None:
        """Write down that a value was used. The entry may be another's by now, which then is kept a little longer."""
        try:
            os.pwrite(self.descriptor, now_ns.to_bytes(8, "little"), HEADER_BYTES + slot * ENTRY_BYTES + LAST_USE_AT)
        except OSError as error:
            self._faults.failed("write", error)


def entry_of(key: bytes, bucket: bytes, first: int) -> tuple[int, bytes] | None:
    """The slot and the entry that is valid for a key in the bucket that begins with slot `first`, if there is one."""
    way = find(bucket, key)
    if way < 0:
        return None
    end = (way + 1) * ENTRY_BYTES
    found = bucket[end - ENTRY_BYTES : end]
    if is_valid(found, first + way):
        return first + way, found
    return entry_of(key, bucket[end:], first + way + 1)  # a damaged one of the same key may stand before it
