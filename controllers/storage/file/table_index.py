"""The index file of a pool's table: its header, entries of 64 bytes in buckets behind it, and the size that a capacity gives.

All numbers are little-endian. The first 4096 bytes are the header, zeros behind the fields:

     0  8  magic, with the version
     8  8  ways: entries of a bucket
    16  8  buckets
    24  8  bytes of a value
    32 32  format digest of the pool
    64 16  xxh3-128 of the 64 bytes before, big-endian as the package gives it

A header that is not exactly this belongs to no table. Behind it lie the entries, bucket by bucket (`table_entry`).

A key's bucket is its first 8 bytes, little-endian, modulo the buckets; a bucket evicts for itself. With 32 ways that differs
little from evicting the oldest of all, and a lookup reads 2 KiB at a place that the key alone decides.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unified_tree.controllers.storage.checksums import xxh3_128_digest
from unified_tree.controllers.storage.file.file_limits import FileFaults
from unified_tree.controllers.storage.file.table_entry import (
    ENTRY_BYTES,
    LAST_USE_AT,
    is_valid,
)
from unified_tree.controllers.storage.storage_engine import StoredPool
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

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


VERSION = 2
HEADER_BYTES = 4096
BLOCK_BYTES = 4096
"""Values start at multiples of this and are written with zeros up to the next: a partial block would be read first."""
WAYS = 32
LARGE_BYTES = 1 << 16
"""Pools whose values are at least as large share a capacity equally; smaller ones get as many values as one of these."""
_ALIGNMENT_BYTES = 1 << 18
_LARGEST_FILE_BYTES = 1 << 43
MAGIC = b"UTtable" + bytes([VERSION])
"""An index file begins with it; its last byte is the version."""
_FIELDS = struct.Struct("<8sQQQ32s")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The size of one pool's table.

    Attributes:
        ways: entries of a bucket.
        buckets: how many.
        value_bytes: of every value.
    """

    ways: int
    buckets: int
    value_bytes: int

    @property
    def slots(self) -> int:
        """Values that the table can hold."""
        return self.ways * self.buckets

    @property
    def written_bytes(self) -> int:
        """A value with the zeros behind it: what it takes on the disk."""
        return round_up(self.value_bytes)

    @property
    def grown_bytes(self) -> int:
        """What a table takes more for one new value, at most: the value, and a block of the index."""
        return self.written_bytes + BLOCK_BYTES

    @property
    def stride_bytes(self) -> int:
        """From one value to the next in the pages file.

        A multiple of the largest power of two that is no larger than a value, or of 256 KiB: what the kernel can keep in larger
        pieces it copies up to a quarter faster. What lies between is a hole and takes no room on the disk. Where the file
        would become longer than half of what ext4 allows, values lie side by side.
        """
        alignment = min(_ALIGNMENT_BYTES, 1 << self.value_bytes.bit_length() - 1)
        stride = round_up(-(-self.value_bytes // alignment) * alignment)
        return stride if stride * self.slots <= _LARGEST_FILE_BYTES else self.written_bytes

    @property
    def disk_bytes(self) -> int:
        """Of both files when every slot is taken."""
        return HEADER_BYTES + round_up(self.slots * ENTRY_BYTES) + self.slots * self.written_bytes

    def header(self, format_digest: bytes) -> bytes:
        """The first 4096 bytes of the index file."""
        fields = _FIELDS.pack(MAGIC, self.ways, self.buckets, self.value_bytes, format_digest)
        return (fields + xxh3_128_digest(fields)).ljust(HEADER_BYTES, b"\0")


def shape_of(header: bytes, pool: StoredPool) -> TableShape | None:
    """The shape that a header describes; None for one that is damaged, or another pool's."""
    if len(header) < _FIELDS.size:
        return None
    _, ways, buckets, _, _ = _FIELDS.unpack_from(header)
    shape = TableShape(ways=ways, buckets=buckets, value_bytes=pool.value_bytes)
    return shape if ways and buckets and shape.header(pool.format_digest) == header else None


def shape_within(limit_bytes: int, pool: StoredPool) -> TableShape:
    """The largest table of a pool that fits. Raises ConfigurationError where not even one value does."""
    stride = round_up(pool.value_bytes)
    slots = (limit_bytes - HEADER_BYTES - BLOCK_BYTES) // (stride + ENTRY_BYTES)
    if slots < 1:
        need = HEADER_BYTES + BLOCK_BYTES + stride + ENTRY_BYTES
        raise ConfigurationError(
            f"{pool.name}: of the capacity its share is {limit_bytes} bytes, one value needs {need}; give more capacity_bytes"
        )
    buckets = max(1, slots // WAYS)
    return TableShape(ways=slots // buckets, buckets=buckets, value_bytes=pool.value_bytes)


def shapes_within(
    capacity_bytes: int | Mapping[str, int], shares: int, pools: Mapping[str, StoredPool]
) -> tuple[int, dict[str, TableShape]]:
    """The bound of the directory, and the tables of one share of it by pool name.

    Args:
        capacity_bytes: for all pools, divided among them in proportion to their values' size but as if none were larger than
            64 KiB; or for each pool by its name.
        shares: the directory is divided into.

    Raises ConfigurationError for anything else, and for a share that does not hold a value of every pool.
    """
    if type(shares) is not int or shares < 1:
        raise ConfigurationError(f"shares must be a positive integer, not {repr_of(shares)}")
    if isinstance(capacity_bytes, Mapping):
        by_pool = dict(capacity_bytes)
        if set(by_pool) != set(pools):
            raise ConfigurationError(f"capacity_bytes must name the pools {sorted(pools)}, not {sorted(map(str, by_pool))}")
        for name, given in by_pool.items():
            _check_bytes(f"capacity_bytes[{name!r}]", given)
        bound = sum(by_pool.values())
    else:
        _check_bytes("capacity_bytes", capacity_bytes)
        bound = capacity_bytes
        weights = {name: min(round_up(pool.value_bytes), LARGE_BYTES) for name, pool in pools.items()}
        by_pool = {name: bound * weight // sum(weights.values()) for name, weight in weights.items()}
    return bound, {name: shape_within(by_pool[name] // shares, pool) for name, pool in pools.items()}


def round_up(size_bytes: int) -> int:
    """The next multiple of a block.

    >>> round_up(65_600)
    69632
    """
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _check_bytes(name: str, given: object) -> None:
    if type(given) is not int or not 0 < given < 1 << 62:
        raise ConfigurationError(f"{name} must be a positive number of bytes below 2**62, not {repr_of(given)}")
