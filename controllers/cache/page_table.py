"""The pages of one component that a request holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.native.int64 import INT64
from unified_tree.tier import PAGE_ID_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_HELD: Final = 0
PRIVATE_FROM: Final = 1
SIZE: Final = 2
MIN_ROOM: Final = 256
ROOM_PART: Final = 16
"""A table has room for so many pages behind the prompt, or for the sixteenth part of those of the prompt."""
NOTHING: Final[NDArray[np.int64]] = np.empty(0, INT64)


class PageTable:
    """The pages of one component by page index; -1 where the lease holds none (before a window).

    The ids and the three numbers are kept here, or in a row of a batch (see `move_to`).

    Args:
        prompt_pages: how many the prompt has. There is room for them, and for some of the output, from the first page on.
    """

    __slots__ = ("_expected", "_first_held", "_ids", "_private_from", "_row", "_size")

    def __init__(self, prompt_pages: int) -> None:
        self._expected = prompt_pages + max(MIN_ROOM, prompt_pages // ROOM_PART)
        self._ids = NOTHING
        self._first_held = 0
        self._private_from = 0
        self._size = 0
        self._row: memoryview | None = None

    @property
    def first_held(self) -> int:
        """The first index held."""
        return self._first_held if self._row is None else self._row[FIRST_HELD]

    @property
    def private_from(self) -> int:
        """Pages from this index on are the lease's own; those below are the tree's and locked."""
        return self._private_from if self._row is None else self._row[PRIVATE_FROM]

    @property
    def size(self) -> int:
        """One past the last index held."""
        return self._size if self._row is None else self._row[SIZE]

    def _note(self, first_held: int, private_from: int, size: int) -> None:
        """Set these three."""
        row = self._row
        if row is None:
            self._first_held, self._private_from, self._size = first_held, private_from, size
        else:
            row[FIRST_HELD], row[PRIVATE_FROM], row[SIZE] = first_held, private_from, size

    def start(self, first_held: int, private_from: int) -> None:
        """Hold nothing below `first_held`; the pages below `private_from` are the tree's."""
        self._note(first_held, private_from, max(self.size, first_held))

    def publish(self, private_from: int) -> None:
        """The pages below an index are the tree's now."""
        if private_from > self.private_from:
            self._note(self.first_held, private_from, self.size)

    def move_to(self, ids: NDArray[np.int64], row: memoryview | None) -> None:
        """Keep the ids in other memory from now on, which has room for them, and the numbers in a row of a batch; None for
        outside it again. Cost: one copy of the ids.
        """
        size = self.size
        ids[:size] = self._ids[:size]
        if row is None:
            self._first_held, self._private_from, self._size = self.first_held, self.private_from, size
        else:
            row[FIRST_HELD], row[PRIVATE_FROM], row[SIZE] = self.first_held, self.private_from, size
        self._ids, self._row = ids, row

    def fill(self, parts: list[bytes], size: int) -> None:
        """Hold `size` pages: the ids in these parts, from index 0 on, and -1 behind them. Cost: one copy of the ids."""
        held = sum([len(part) for part in parts])
        parts.append(b"\xff" * (max(size, self._expected) * PAGE_ID_BYTES - held))
        self._ids = np.frombuffer(bytearray().join(parts), INT64)
        self._note(self.first_held, self.private_from, size)

    def fill_end(self, parts: list[bytes], size: int) -> None:
        """Hold the ids in these parts as the last of `size` pages, and -1 before and behind them. Cost: O(size)."""
        held = b"".join(parts)
        first = size - len(held) // PAGE_ID_BYTES
        ids = bytearray(b"\xff") * (max(size, self._expected) * PAGE_ID_BYTES)
        ids[first * PAGE_ID_BYTES : size * PAGE_ID_BYTES] = held
        self._ids = np.frombuffer(ids, INT64)
        self._note(first, self.private_from, size)

    def put(self, first: int, ids: NDArray[np.int64]) -> None:
        """Write page ids at the indices from `first` on."""
        last = first + ids.size
        self.cover(last)
        self._ids[first:last] = ids
        if last > self.size:
            self._note(self.first_held, self.private_from, last)

    def append(self, page: int) -> None:
        """Hold one page more, at the end, where `cover` has made room."""
        size = self.size
        self._ids[size] = page
        self._note(self.first_held, self.private_from, size + 1)

    def cover(self, size: int) -> None:
        """Have room for the indices below `size`. Raises MemoryError with nothing changed."""
        if size > self._ids.size:
            before = self._ids.size
            unset = bytearray(b"\xff") * (max(size, 2 * before, self._expected) * PAGE_ID_BYTES)  # -1 in each place
            grown: NDArray[np.int64] = np.frombuffer(unset, INT64)
            grown[:before] = self._ids
            self._ids = grown

    def page(self, index: int) -> int:
        """The id at an index; -1 if it holds none there."""
        return int(self._ids[index]) if self.first_held <= index < self.size else -1

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

    def private_before(self, first_kept: int) -> NDArray[np.int64]:
        """The private pages below an index: a copy."""
        return self._ids[max(self.first_held, self.private_from) : max(0, min(first_kept, self.size))].copy()

    def private_first(self) -> int:
        """The page of the first index held, if it is private, or -1."""
        first = self.first_held
        return self.page(first) if first >= self.private_from else -1

    def drop_front(self, first_kept: int) -> None:
        """Release the indices below `first_kept`, whose private pages the lease has freed. Idempotent."""
        first_held, private_from, size = self.first_held, self.private_from, self.size
        first_kept = min(first_kept, size)
        if first_kept > first_held:
            self._ids[first_held:first_kept] = -1
            self._note(first_kept, max(private_from, first_kept), size)

    def skip_to(self, first_held: int) -> None:
        """As `drop_front`, of all below an index, which may lie beyond the end."""
        self.drop_front(first_held)
        if first_held > self.size:
            self.start(first_held, first_held)

    def private_from_index(self, size: int) -> NDArray[np.int64]:
        """The pages of the indices from `size` on, all private: a copy."""
        return self._ids[max(size, self.first_held) : self.size].copy()

    def drop_back(self, size: int) -> None:
        """Release the indices from `size` on, whose pages the lease has freed. Idempotent."""
        first_held, held = self.first_held, self.size
        size = max(size, first_held)
        self._ids[size:held] = -1
        self._note(first_held, self.private_from, min(size, held))
