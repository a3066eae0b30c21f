"""The trailer of a stored page: magic, length, checksum and key; 64 bytes, all of which are verified.

    0   8  magic, with the version
    8   8  bytes before the trailer, little-endian
    16 16  xxh3-128 of those bytes, big-endian as the package gives it
    32 32  the key under which the page is stored

A page that is torn, has a flipped bit, was swapped with another, or was never written differs in one of the four. xxh3 does not
protect against forged pages; every writer of the store is trusted. Cost: one pass over the page, above 20 GB/s.
"""

from __future__ import annotations

import struct

from unified_tree.controllers.pools.host_layout import TRAILER_BYTES
from unified_tree.controllers.storage.checksums import xxh3_128_digest
from unified_tree.controllers.storage.storage_engine import KEY_BYTES
from unified_tree.terms.errors import PageError

_MAGIC = b"UTpage\x00\x01"
_TRAILER = struct.Struct("<8sQ16s32s")
assert _TRAILER.size == TRAILER_BYTES


def seal(page: memoryview, key: bytes) -> None:
    """Write the trailer into the last 64 bytes of a writable page (`HostPool.page_memory`), for that 32-byte key.

    Raises PageError for memory without room for more than a trailer, or a key of another length.
    """
    if len(page) <= TRAILER_BYTES or len(key) != KEY_BYTES:
        raise PageError(
            f"a page of {len(page)} bytes cannot be sealed under a key of {len(key)}: {TRAILER_BYTES} + 1, {KEY_BYTES}"
        )
    end = len(page) - TRAILER_BYTES
    _TRAILER.pack_into(page, end, _MAGIC, end, xxh3_128_digest(page[:end]), key)


def is_intact(page: memoryview, key: bytes) -> bool:
    """Whether a page is byte for byte what was sealed under this key."""
    end = len(page) - TRAILER_BYTES
    return end > 0 and page[end:] == _TRAILER.pack(_MAGIC, end, xxh3_128_digest(page[:end]), key)
