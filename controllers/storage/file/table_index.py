"""The open index file of a table: buckets in, entries and last uses out."""

from __future__ import annotations

import os

from unified_tree.controllers.storage.file.table_entry import ENTRY_BYTES, LAST_USE_AT, last_use
from unified_tree.controllers.storage.file.table_shape import HEADER_BYTES, TableShape
from unified_tree.controllers.storage.file.trouble_log import TroubleLog

REFRESH_NS = 1_000_000_000
"""A use is written down when the last one is longer ago: recency is known to a second, and hot values cost no writes."""


class TableIndex:
    """Reads and writes entries.

    Args:
        descriptor: of the index file, not owned.
        shape: of the table.
        trouble: told when a use cannot be written down, which otherwise harms nobody.

    Attributes:
        descriptor: the same.
    """

    def __init__(self, descriptor: int, shape: TableShape, trouble: TroubleLog) -> None:
        self.descriptor = descriptor
        self._trouble = trouble
        self._ways, self._buckets = shape.ways, shape.buckets
        self._bucket_bytes = shape.ways * ENTRY_BYTES

    def bucket(self, key: bytes) -> tuple[int, bytes]:
        """The slot of the first entry of the key's bucket, and the bucket; what lies beyond the end of the file is empty.

        Raises OSError.
        """
        first = int.from_bytes(key[:8], "little") % self._buckets * self._ways
        found = os.pread(self.descriptor, self._bucket_bytes, HEADER_BYTES + first * ENTRY_BYTES)
        return first, found if len(found) == self._bucket_bytes else found.ljust(self._bucket_bytes, b"\0")

    def write(self, slot: int, made: bytes) -> None:
        """Replace an entry. Raises OSError."""
        os.pwrite(self.descriptor, made, HEADER_BYTES + slot * ENTRY_BYTES)

    def touch(self, found: bytes, slot: int, now_ns: int) -> None:
        """Write down that a value was used. The entry may be another's by now, which then is kept a little longer."""
        if not 0 <= now_ns - last_use(found) < REFRESH_NS:
            try:
                os.pwrite(self.descriptor, now_ns.to_bytes(8, "little"), HEADER_BYTES + slot * ENTRY_BYTES + LAST_USE_AT)
            except OSError as error:
                self._trouble.failed("write", error)
