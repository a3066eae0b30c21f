"""Sets of page ids, asked and changed many ids at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW = 16


class PageSet:
    """Ids 0 … capacity - 1, one byte each; memory is only touched where ids are.

    A few ids are handled one by one, for an array operation costs as much as some twenty of them. The results of many are
    searched as bytes, which costs a fraction of a reduction.
    """

    def __init__(self, capacity: int) -> None:
        self._array: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self._bytes = self._array.view(np.uint8).data  # the same memory, one id at a time
        self._order: NDArray[np.int32] = np.empty(0, np.int32)  # scratch to find an id given twice, made when first needed:
        self._numbers: NDArray[np.int32] = self._order  # the last number given to each id, and the numbers from 0 up

    @property
    def capacity(self) -> int:
        """One past the largest id it can hold."""
        return len(self._bytes)

    def contains(self, page: int) -> bool:
        """Whether one id is a member."""
        return 0 <= page < len(self._bytes) and self._bytes[page] == 1

    def count(self) -> int:
        """How many ids are members. Cost: O(capacity)."""
        return int(np.count_nonzero(self._array))

    def grow(self, capacity: int) -> None:
        """Hold ids below `capacity`, and room to spare. Cost: O(capacity)."""
        grown = np.zeros(max(capacity, 2 * len(self._bytes)), np.bool_)
        grown[: len(self._bytes)] = self._array
        self._array = grown
        self._bytes = grown.view(np.uint8).data

    def all_are(self, ids: NDArray[np.int64], *, members: bool) -> bool:
        """Whether all ids are in range, each given once, and all members or all not. Cost: O(len(ids))."""
        count = len(ids)
        if count <= FEW:
            few: list[int] = ids.tolist()
            return self._few_are(few, members)
        if int(np.minimum.reduce(ids)) < 0:
            return False
        try:
            found: NDArray[np.bool_] = self._array.take(ids)
        except IndexError:
            return False
        return found.tobytes().find(0 if members else 1) < 0 and not self._has_twice(ids, count)

    def _few_are(self, ids: list[int], members: bool) -> bool:
        flags = self._bytes
        capacity = len(flags)
        for page in ids:
            if page < 0 or page >= capacity or (flags[page] == 1) != members:
                return False
        return len(ids) < 2 or len(set(ids)) == len(ids)

    def _has_twice(self, ids: NDArray[np.int64], count: int) -> bool:
        """Whether an id is given twice: number the ids by scattering; does each find its own number again?"""
        if len(self._order) < len(self._bytes):
            self._order = np.zeros(len(self._bytes), np.int32)
        if len(self._numbers) < count:
            self._numbers = np.arange(2 * count, dtype=np.int32)
        numbers: NDArray[np.int32] = self._numbers[:count]
        self._order[ids] = numbers
        same: NDArray[np.bool_] = self._order.take(ids) == numbers
        return same.tobytes().find(0) >= 0

    def add(self, ids: NDArray[np.int64]) -> None:
        """Take ids in. They are in range."""
        self._set(ids, 1)

    def discard(self, ids: NDArray[np.int64]) -> None:
        """Take ids out. They are in range."""
        self._set(ids, 0)

    def _set(self, ids: NDArray[np.int64], flag: int) -> None:
        if len(ids) > FEW:
            self._array[ids] = flag
            return
        flags = self._bytes
        few: list[int] = ids.tolist()
        for page in few:
            flags[page] = flag
