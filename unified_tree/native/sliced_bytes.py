"""Comparing keys and edges, and hashing a page, by slices, where the C module `key_bytes` was not compiled."""

from __future__ import annotations

from typing import Final

STRETCH_BYTES: Final = 1 << 18
"""What is compared at once of bytes that differ somewhere."""


def agreement(data: bytes | memoryview, edge: bytes | memoryview, position: int, stop: int, page: int) -> int:
    """How many bytes of `edge`, in whole pages, agree with a key's data from a position up to `stop`.

    Args:
        page: bytes a page.

    Cost: each byte is compared once, or twice in the stretch that differs; an edge that is no `bytes` is copied first.
    """
    ours, theirs = memoryview(data), edge if isinstance(edge, bytes) else bytes(edge)
    size = min(len(theirs), min(stop, len(ours)) - position) // page * page
    if size <= 0:
        return 0
    if size == len(theirs) <= STRETCH_BYTES and theirs.startswith(ours[position : position + size]):
        return size
    if not theirs.startswith(ours[position : position + page]):
        return 0
    low, high, stretch, differs = 1, size // page, max(1, STRETCH_BYTES // page), False
    while low < high:
        middle = low + ((high - low + 1) // 2 if differs else min(high - low, stretch))
        if theirs.startswith(ours[position + low * page : position + middle * page], low * page):
            low = middle
        else:
            high = middle - 1
            differs = True
    return low * page


def page_code(length: int, data: bytes | memoryview, position: int, page_bytes: int) -> int:
    """A hash of a length and the page behind it, which stands in a key's data at a position. Cost: O(page)."""
    return hash(bytes(data[position : position + page_bytes])) ^ length
