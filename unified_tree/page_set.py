"""Sets of page ids, asked and changed many ids at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW = 16


class PageSet:
    """Ids 0 … capacity - 1, one byte each; memory is only touched where ids are.

    Small results are searched as bytes: that costs a fraction of a reduction over a small array.
    """

    __slots__ = ("_members", "_order")

    def __init__(self, capacity: int) -> None:
        self._members = np.zeros(capacity, np.bool_)
        self._order = np.empty(0, np.int32)  # scratch to find an id given twice; made when first needed

    @property
    def capacity(self) -> int:
        """One past the largest id it can hold."""
        return int(self._members.size)

    def __contains__(self, page: int) -> bool:
        return 0 <= page < self._members.size and bool(self._members[page])

    def __len__(self) -> int:
        return int(self._members.sum())

    def grow(self, capacity: int) -> None:
        """Hold ids below `capacity`, and room to spare. Cost: O(capacity)."""
        grown = np.zeros(max(capacity, 2 * self._members.size), np.bool_)
        grown[: self._members.size] = self._members
        self._members = grown

    def in_range(self, ids: NDArray[np.int64]) -> bool:
        """Whether all ids are zero or more and below the capacity."""
        return bool(np.minimum.reduce(ids) >= 0 and np.maximum.reduce(ids) < self._members.size)

    def first_member(self, ids: NDArray[np.int64]) -> int:
        """The position of the first id that is a member, -1 if none is. The ids are in range."""
        return self._members.take(ids).tobytes().find(1)

    def first_stranger(self, ids: NDArray[np.int64]) -> int:
        """The position of the first id that is no member, -1 if all are. The ids are in range."""
        return self._members.take(ids).tobytes().find(0)

    def has_twice(self, ids: NDArray[np.int64]) -> bool:
        """Whether an id is given twice: number the ids by scattering; does each find its own number again?"""
        count = ids.size
        if count <= FEW:
            return count > 1 and len(set(ids.tolist())) != count
        if self._order.size < self._members.size:
            self._order = np.zeros(self._members.size, np.int32)
        numbers = np.arange(count, dtype=np.int32)
        self._order[ids] = numbers
        return bool((self._order.take(ids) != numbers).tobytes().find(1) >= 0)

    def add(self, ids: NDArray[np.int64]) -> None:
        """Take ids in. They are in range."""
        self._members[ids] = True

    def discard(self, ids: NDArray[np.int64]) -> None:
        """Take ids out. They are in range."""
        self._members[ids] = False
