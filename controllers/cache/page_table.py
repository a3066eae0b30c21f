"""The pages of one component that a request holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.node import PAGE_ID_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_ROOM_BYTES = 64 * PAGE_ID_BYTES
ROOM_PART = 16
"""A table that is filled has room for a sixteenth more than it holds: for the prompt's rest and the first of the output."""


class PageTable:
    """The pages of one component by page index; -1 where the lease holds none (before a window).

    Attributes:
        private_from: pages from this index on are the lease's own; those below are the tree's and locked.
        first_held: the first index held.
        size: one past the last index held.
    """

    __slots__ = ("_ids", "first_held", "private_from", "size")

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self.first_held = 0
        self.private_from = 0
        self.size = 0

    def fill(self, parts: list[bytes]) -> None:
        """Hold these ids from index 0 on, where there are none yet. Cost: one copy of them, and room for some more."""
        size = sum(map(len, parts))
        parts.append(b"\xff" * max(MIN_ROOM_BYTES, size // ROOM_PART // PAGE_ID_BYTES * PAGE_ID_BYTES))
        self._ids = np.frombuffer(bytearray().join(parts), np.int64)
        self.size = size // PAGE_ID_BYTES

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
