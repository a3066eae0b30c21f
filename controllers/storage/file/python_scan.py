"""What is in a bucket: the entry of a key, the one that takes a new value, and what goes for it.

`bucket_scan` does the same in C, and is used where it was compiled.
"""

from __future__ import annotations

import struct
from functools import cache

from unified_tree.controllers.storage.file.table_entry import CHECKSUM_AT, ENTRY_BYTES, LAST_USE_AT, WRITTEN_AT

NONE, FRESH, WRITTEN = 0, 1, 2
"""No entry is empty; one is, whose slot was never written to, so that the disk must find room; one is, whose slot was."""
_ZEROS = bytes(8)


def find(bucket: bytes, key: bytes, /) -> int:
    """The first entry with these 32 bytes of a key, which may be invalid, or -1.

    >>> find(bytes(64) + b"k" * 64, b"k" * 32)
    1
    """
    at = bucket.find(key)
    while at % ENTRY_BYTES and at >= 0:
        at = bucket.find(key, at + 1)
    return at // ENTRY_BYTES


def scan(bucket: bytes, now_ns: int, /) -> tuple[int, int, int, int]:
    """Where a new value would go, and what would go for it.

    Returns:
        kind: NONE, FRESH or WRITTEN.
        empty: the first empty entry of that kind, WRITTEN before FRESH; -1 for NONE.
        empties: how many entries are empty.
        victim: of the others the first of a time to come, which only a flipped bit or a clock that was set back can have
            written, or else the least recently used; -1 if there are none.

    Cost: O(entries of a bucket).
    """
    uses = _uses(len(bucket) // ENTRY_BYTES).unpack(bucket)
    unused = uses.count(0)
    if unused == 1 and max(uses) <= now_ns and _word(bucket, way := uses.index(0), CHECKSUM_AT) == _ZEROS:  # nearly always
        victim = uses.index(min(filter(None, uses))) if len(uses) > 1 else -1
        return _kind(bucket, way), way, 1, victim
    empties = [way for way, use in enumerate(uses) if not use and _word(bucket, way, CHECKSUM_AT) == _ZEROS] if unused else []
    others = set(range(len(uses))).difference(empties)
    victim = min(others, key=lambda way: (uses[way] if uses[way] <= now_ns else 0, way), default=-1)
    if not empties:
        return NONE, -1, 0, victim
    way = max(empties, key=lambda way: _kind(bucket, way))
    return _kind(bucket, way), way, len(empties), victim


@cache
def _uses(ways: int) -> struct.Struct:
    return struct.Struct("<" + f"{LAST_USE_AT}xQ{ENTRY_BYTES - LAST_USE_AT - 8}x" * ways)


def _kind(bucket: bytes, way: int) -> int:
    return FRESH if _word(bucket, way, WRITTEN_AT) == _ZEROS else WRITTEN


def _word(bucket: bytes, way: int, at: int) -> bytes:
    return bucket[way * ENTRY_BYTES + at : way * ENTRY_BYTES + at + 8]
