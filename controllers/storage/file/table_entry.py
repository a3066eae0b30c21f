"""The index of a pool's table: entries of 64 bytes in buckets, little-endian.

     0 32  the key
    32  8  generation: another at every write, so that an entry which is the same twice was not written in between
    40  8  xxh3-64 of the 40 bytes before, seeded with the slot's number, as the package gives it
    48  8  last use, nanoseconds since 1970; not checked, since it is rewritten in place without a lock
    56  8  zeros

An entry is valid when its checksum is; one of zeros is empty, and no key is valid in it. The number of an entry is the number
of its slot, so nothing that happens to an index makes an engine read or write outside the slots of its own table, and there
is no list of free slots to lose. What the entries say about recency only decides which value goes first.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from xxhash import xxh3_64_digest

ENTRY_BYTES = 64
STABLE_BYTES = 48
"""What does not change while a value stays: key, generation and checksum."""
LAST_USE_AT = 48
"""Where in an entry its last use is."""
EMPTY = bytes(ENTRY_BYTES)
_CHECKED_BYTES = 40
_HEAD = struct.Struct("<32sQ")
_TAIL = struct.Struct("<Q8x")


def entry(key: bytes, generation: int, slot: int, now_ns: int) -> bytes:
    """The 64 bytes of a valid entry."""
    head = _HEAD.pack(key, generation)
    return head + xxh3_64_digest(head, slot) + _TAIL.pack(now_ns)


def way_of(key: bytes, bucket: bytes, first_slot: int) -> int:
    """Which entry of a bucket is valid for this key, or -1. Cost: a memory search through the bucket.

    >>> way_of(bytes(32), EMPTY * 3, 0)
    -1
    >>> way_of(bytes(32), EMPTY + entry(bytes(32), 7, 9, 0), 8)
    1
    """
    at = bucket.find(key)
    while at >= 0:
        way, inside = divmod(at, ENTRY_BYTES)
        if not inside:
            head_end = at + _CHECKED_BYTES
            if bucket[head_end : at + STABLE_BYTES] == xxh3_64_digest(bucket[at:head_end], first_slot + way):
                return way
        at = bucket.find(key, at + 1)
    return -1


def last_use(found: bytes) -> int:
    """Of the value of an entry, nanoseconds since 1970."""
    return int.from_bytes(found[LAST_USE_AT : LAST_USE_AT + 8], "little")


class LastUses:
    """Chooses what goes from buckets of a number of entries."""

    def __init__(self, ways: int) -> None:
        self._every = struct.Struct("<" + "48xQ8x" * ways)

    def victim(self, bucket: bytes, now_ns: int, *, taken: Collection[int] = (), rather_used: bool = False) -> int:
        """Which entry is to be replaced. At least one must not be taken.

        That is an empty one, then one of a time to come, which only a flipped bit or a clock that was set back can have
        written, then the least recently used.

        Args:
            taken: entries that may not be.
            rather_used: leave empty ones for the last.
        """
        uses = self._every.unpack(bucket)
        if not taken and not rather_used and max(uses) <= now_ns:
            return uses.index(min(uses))
        free = [way for way in range(len(uses)) if way not in taken]
        used = [way for way in free if uses[way]] if rather_used else []
        return min(used or free, key=lambda way: uses[way] if uses[way] <= now_ns else 1)
