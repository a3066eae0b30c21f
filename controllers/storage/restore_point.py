"""Restore points: a small record that is stored after the trailing pages of a boundary (a length one can resume from), and
attests that all of them were stored.

    0   8  magic, with the version
    8   8  length of the prefix in pages
    16 32  chain digest of the prefix
    48  8  number of pools, n
    56 40n for each pool, ascending by digest: 32 bytes format digest, 8 bytes how many of its pages up to the boundary
       ... zeros up to `body_bytes(pools)`, then the trailer of every stored value (page_seal)

Integers are little-endian and unsigned. A record has exactly one encoding; anything else is refused. It attests that pages were
stored, not their bytes: two writers may have computed equal states with different rounding. A boundary needs its record *and*
its pages, because a store may evict either. Cost: microseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.storage_engine import StoredPool
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.storage.digests import Digests

_MAGIC = b"UTrest\x00\x01"
_HEAD = struct.Struct("<8sQ32sQ")
_POOL = struct.Struct("<32sQ")
_LARGEST = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """One boundary on L3.

    Attributes:
        length_pages: of the prefix, one or more.
        chain_digest: of the prefix, 32 bytes.
        attested: by format digest, how many of the pool's pages up to the boundary were stored: 1 … length_pages.

    Raises ConfigurationError for invalid fields.
    """

    length_pages: int
    chain_digest: bytes
    attested: Mapping[bytes, int]

    def __post_init__(self) -> None:
        if not 0 < self.length_pages < _LARGEST or len(self.chain_digest) != 32:
            raise ConfigurationError(f"no boundary: {self.length_pages!r} pages, digest {self.chain_digest!r}")
        for digest, pages in self.attested.items():
            if len(digest) != 32 or not 0 < pages <= self.length_pages:
                raise ConfigurationError(f"a record of {self.length_pages} pages cannot attest {pages!r} of {repr_of(digest)}")

    def encode(self, size_bytes: int) -> bytes:
        """The record in `size_bytes` bytes, without a trailer. Raises ConfigurationError where it does not fit."""
        parts = [_HEAD.pack(_MAGIC, self.length_pages, self.chain_digest, len(self.attested))]
        parts += [_POOL.pack(digest, self.attested[digest]) for digest in sorted(self.attested)]
        data = b"".join(parts)
        if len(data) > size_bytes:
            raise ConfigurationError(f"a record of {len(self.attested)} pools is {len(data)} bytes, more than {size_bytes}")
        return data.ljust(size_bytes, b"\0")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> RestorePoint | None:
        """The record with exactly this encoding; None for any other bytes."""
        if len(data) < _HEAD.size:
            return None
        magic, length, digest, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or not length or count > (len(data) - _HEAD.size) // _POOL.size:
            return None
        attested = dict(_POOL.unpack_from(data, _HEAD.size + index * _POOL.size) for index in range(count))
        if len(attested) < count or any(not 0 < pages <= length for pages in attested.values()):
            return None
        record = cls(length_pages=length, chain_digest=digest, attested=attested)
        return record if record.encode(len(data)) == bytes(data) else None


def body_bytes(pool_count: int) -> int:
    """Bytes of a record of so many pools, rounded up to the alignment of pages.

    >>> body_bytes(1), body_bytes(3)
    (128, 192)
    """
    return -(-(_HEAD.size + pool_count * _POOL.size) // 64) * 64


def record_pool(trailing: Sequence[StoredPool], name: str = "restore points") -> StoredPool:
    """The pool in which the records of a composition lie; other compositions' records have other keys."""
    digests = sorted(pool.format_digest for pool in trailing)
    return StoredPool(
        name=name,
        format_digest=sha256(_MAGIC + b"".join(digests)).digest(),
        value_bytes=body_bytes(len(digests)) + TRAILER_BYTES,
    )


def attested_pages(
    records: Mapping[int, RestorePoint], chain_digests: Sequence[bytes] | Digests, format_digest: bytes
) -> NDArray[np.int64]:
    """How many pages of a pool the record after each page attests, shape [pages]: `PoolFinding.attested`.

    Args:
        records: as read, by the index of the page they follow; a record of another boundary is ignored.
        chain_digests: of the prefix's pages from its first.
        format_digest: of the pool.
    """
    attested = np.zeros(len(chain_digests), np.int64)
    for page, record in records.items():
        if record.length_pages == page + 1 and record.chain_digest == chain_digests[page]:
            attested[page] = record.attested.get(format_digest, 0)
    return attested
