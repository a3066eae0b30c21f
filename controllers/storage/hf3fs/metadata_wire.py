"""What the metadata service and its clients say to each other about many keys at once; everything else is JSON.

A request's body, little-endian:

    u32 count of leases that ended, u64 each; u32 count of keys, 32 bytes each; for `confirm` a byte for each key

and the answer's: u64 lease (0 for none), u32 count, i64 for each key: its page, or one of the numbers below.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from unified_tree.controllers.storage.storage_engine import KEY_BYTES

NOWHERE = -1
"""The key has no page."""
PRESENT = -2
"""The key has a page already; nothing is to be written."""
BUSY = -3
"""Somebody is writing that key."""
FULL = -4
"""No page can be had now."""
GONE = -5
"""The lease is over, and the key was not confirmed."""

WRITTEN, UNWRITTEN, UNKNOWN = 1, 0, 2
"""How writing a page ended: it is there; it did not happen and will not; it may still happen."""

LARGEST_BATCH = 1 << 14
"""Keys in one request; clients split what is longer."""
_COUNT = struct.Struct("<I")
_ANSWER = struct.Struct("<QI")


class WireError(ValueError):
    """Bytes that are not what they should be."""


def pack_request(keys: Sequence[bytes], ended: Sequence[int] = (), flags: bytes = b"") -> bytes:
    """The body of a request about keys of 32 bytes."""
    leases = struct.pack(f"<I{len(ended)}Q", len(ended), *ended)
    return b"".join((leases, _COUNT.pack(len(keys)), *keys, flags))


def unpack_request(body: bytes, *, has_flags: bool = False) -> tuple[list[int], list[bytes], bytes]:
    """Leases that ended, keys, and a flag for each if there are any. Raises WireError."""
    ended_count, at = _count(body, 0)
    if len(body) < at + 8 * ended_count:
        raise WireError(f"{ended_count} leases in {len(body)} bytes")
    ended = list(struct.unpack_from(f"<{ended_count}Q", body, at))
    count, at = _count(body, at + 8 * ended_count)
    flags_at = at + KEY_BYTES * count
    end = flags_at + (count if has_flags else 0)
    if count > LARGEST_BATCH or len(body) != end:
        raise WireError(f"{count} keys in {len(body)} bytes, where {end} are expected and {LARGEST_BATCH} keys the most")
    keys = [body[start : start + KEY_BYTES] for start in range(at, flags_at, KEY_BYTES)]
    return ended, keys, body[flags_at:]


def pack_answer(answers: Sequence[int], lease: int = 0) -> bytes:
    """The body of an answer."""
    return _ANSWER.pack(lease, len(answers)) + struct.pack(f"<{len(answers)}q", *answers)


def unpack_answer(body: bytes, count: int) -> tuple[int, list[int]]:
    """The lease, and the number for each of `count` keys. Raises WireError."""
    if len(body) != _ANSWER.size + 8 * count:
        raise WireError(f"{len(body)} bytes are no answer about {count} keys")
    lease, said = _ANSWER.unpack_from(body)
    if said != count:
        raise WireError(f"an answer about {said} keys, not {count}")
    return lease, list(struct.unpack_from(f"<{count}q", body, _ANSWER.size))


def _count(body: bytes, at: int) -> tuple[int, int]:
    if len(body) < at + _COUNT.size:
        raise WireError(f"{len(body)} bytes end too early")
    return _COUNT.unpack_from(body, at)[0], at + _COUNT.size
