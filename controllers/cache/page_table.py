"""The pages of one component that a request holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.int64 import INT64
from unified_tree.node import PAGE_ID_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_ROOM: Final = 64
ROOM_PART: Final = 16
"""A table that is filled has room for so many pages more, or for the sixteenth part of what it holds."""
NOTHING: Final[NDArray[np.int64]] = np.empty(0, INT64)


class PageTable:
    """The pages of one component by page index; -1 where the lease holds none (before a window).

    Attributes:
        private_from: pages from this index on are the lease's own; those below are the tree's and locked.
        first_held: the first index held.
        size: one past the last index held.
    """

    __slots__ = ("_ids", "first_held", "private_from", "size")

    def __init__(self) -> None:
        self._ids = NOTHING
        self.first_held = 0
        self.private_from = 0
        self.size = 0

    def fill(self, parts: list[bytes], size: int) -> None:
        """Hold `size` pages: the ids in these parts, from index 0 on, and -1 behind them. Cost: one copy of the ids.

        There is room for some more pages: for the rest of the prompt, and for the first of the output.
        """
        parts.append(b"\xff" * (_room(size) * PAGE_ID_BYTES))
        self._ids = np.frombuffer(bytearray().join(parts), INT64)
        self.cover(size)
        self.size = size

    def fill_end(self, parts: list[bytes], size: int) -> None:
        """Hold the ids in these parts as the last of `size` pages, and -1 before and behind them. Cost: O(size)."""
        held = b"".join(parts)
        first = size - len(held) // PAGE_ID_BYTES
        ids = bytearray(b"\xff") * ((size + _room(size)) * PAGE_ID_BYTES)
        ids[first * PAGE_ID_BYTES : size * PAGE_ID_BYTES] = held
        self._ids = np.frombuffer(ids, INT64)
        self.first_held = first
        self.size = size

    def put(self, first: int, ids: NDArray[np.int64]) -> None:
        """Write page ids at the indices from `first` on."""
        last = first + ids.size
        self.cover(last)
        self._ids[first:last] = ids
        self.size = max(self.size, last)

    def cover(self, size: int) -> None:
        """Have room for the indices below `size`. Raises MemoryError with nothing changed."""
        if size > self._ids.size:
            grown = np.full(max(size, 2 * self._ids.size), -1, np.int64)
            grown[: self._ids.size] = self._ids
            self._ids = grown

    def slice(self, first: int, last: int) -> NDArray[np.int64]:
        """The ids of the indices [first, last): a view, in which later changes show."""
        return self._ids[first:last]

    @property
    def has_private(self) -> bool:
        """Whether the lease has pages of its own."""
        return max(self.first_held, self.private_from) < self.size

    def private(self) -> NDArray[np.int64]:
        """The lease's own pages: a copy."""
        return self._ids[max(self.first_held, self.private_from) : self.size].copy()

    def release_front(self, first_kept: int) -> NDArray[np.int64]:
        """Release the indices below `first_kept`; returns the private pages among them, which the lease must free."""
        first_kept = min(first_kept, self.size)
        if first_kept <= self.first_held:
            return self._ids[:0]
        private = self._ids[max(self.first_held, self.private_from) : first_kept].copy()
        self._ids[self.first_held : first_kept] = -1
        self.first_held = first_kept
        self.private_from = max(self.private_from, first_kept)
        return private

    def skip_to(self, first_held: int) -> NDArray[np.int64]:
        """Release all below an index, which may lie beyond the end; returns the private pages that the lease must free."""
        private = self.release_front(first_held)
        if first_held > self.size:
            self.first_held = self.private_from = self.size = first_held
        return private

    def release_back(self, size: int) -> NDArray[np.int64]:
        """Release the indices from `size` on, all private; returns their pages."""
        size = max(size, self.first_held)
        dropped = self._ids[size : self.size].copy()
        self._ids[size : self.size] = -1
        self.size = min(size, self.size)
        return dropped


def _room(size: int) -> int:
    return max(MIN_ROOM, size // ROOM_PART)
