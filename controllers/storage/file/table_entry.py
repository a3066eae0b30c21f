"""The index of a pool's table: entries of 64 bytes in buckets, little-endian.

     0 32  the key
    32  8  generation: another at every write, so that an entry which is the same twice was not written in between
    40  8  xxh3-64 of the 40 bytes before, seeded with the slot's number, as the package gives it
    48  8  last use, nanoseconds since 1970; not checked, since it is rewritten in place without a lock
    56  8  not 0 once the slot was written to, so that the disk has room for it; not checked

An entry is valid when its checksum is; it is empty when checksum and last use are 0, and no key is valid in such a one. The
number of an entry is the number of its slot, so nothing that happens to an index makes an engine read or write outside the
slots of its own table, and there is no list of free slots to lose. What the entries say about recency only decides which value
goes first.
"""

from __future__ import annotations

import struct

from unified_tree.controllers.storage.checksums import xxh3_64_digest

ENTRY_BYTES = 64
STABLE_BYTES = 48
"""What does not change while a value stays: key, generation and checksum."""
CHECKSUM_AT, LAST_USE_AT, WRITTEN_AT = 40, 48, 56
"""Where in an entry those are."""
EMPTIED = bytes(56) + (1).to_bytes(8, "little")
"""The empty entry of a slot that was written to; those that never were are zeros."""
_HEAD = struct.Struct("<32sQ")
_TAIL = struct.Struct("<QQ")


def entry(key: bytes, generation: int, slot: int, now_ns: int) -> bytes:
    """The 64 bytes of a valid entry."""
    head = _HEAD.pack(key, generation)
    return head + xxh3_64_digest(head, slot) + _TAIL.pack(now_ns, 1)


def is_valid(found: bytes, slot: int) -> bool:
    """Whether the bytes of an entry were written as that of this slot.

    >>> made = entry(bytes(32), 7, 9, 0)
    >>> is_valid(made, 9), is_valid(made, 8), is_valid(EMPTIED, 9)
    (True, False, False)
    """
    return found[CHECKSUM_AT:STABLE_BYTES] == xxh3_64_digest(found[:CHECKSUM_AT], slot)


def last_use(found: bytes) -> int:
    """Of the value of an entry, nanoseconds since 1970."""
    return int.from_bytes(found[LAST_USE_AT : LAST_USE_AT + 8], "little")
