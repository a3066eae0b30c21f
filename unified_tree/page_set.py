"""Sets of page ids, with operations on many ids at a time."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.errors import PageError
from unified_tree.int64 import INT64, INT64_BYTES, any_negative, run_start

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW: Final = 16
FIRST_SIZE: Final = 1024
MAX_PAGES: Final = 1 << 32
"""Ids from here on cannot be tracked: a byte each, that would be more than 4 GiB."""
UNPACK: Final = [Struct(f"={count}q").unpack for count in range(FEW + 1)]


class PageSet:
    """A set of ids 0 … capacity - 1. It uses one byte an id, up to the largest id seen; an empty set of any capacity costs
    nothing.

    A few ids are handled one by one, because an array operation costs as much as about twenty of them. Consecutive ids, which a
    young pool allocates, are handled as one slice. Results of other operations are searched as bytes, which is much cheaper
    than a reduction.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: int = capacity  # one past the largest id it may hold
        self._bytes = bytearray(min(capacity, FIRST_SIZE))
        self._array: NDArray[np.bool_] = np.frombuffer(self._bytes, np.bool_)  # the same memory, many ids at a time
        self._order: NDArray[np.int32] = np.empty(0, np.int32)  # scratch to find an id given twice, made when first needed:
        self._numbers: NDArray[np.int32] = self._order  # the last number given to each id, and the numbers from 0 up,
        self._number_bytes = b""  # also as bytes, for one comparison of memory is cheaper than one of arrays

    def contains(self, page: int) -> bool:
        """Whether one id is a member."""
        return 0 <= page < len(self._bytes) and self._bytes[page] == 1

    def count(self) -> int:
        """How many ids are members. Cost: O(capacity)."""
        return int(np.count_nonzero(self._array))

    def grow(self, capacity: int) -> None:
        """Allow ids below `capacity`, and room to spare. Cost: O(1)."""
        self.capacity = max(capacity, 2 * self.capacity)

    def cover(self, size: int) -> None:
        """Have memory for the ids below `size`, which is at most the capacity.

        Raises PageError, with nothing changed, if there is not enough. Cost: O(1), amortized over ids: memory grows by
        doubling.
        """
        before = len(self._bytes)
        if size <= before:
            return
        assert size <= self.capacity
        if size > MAX_PAGES:
            raise PageError(f"page ids must be below {MAX_PAGES} to be kept track of, got {size - 1}")
        try:
            grown = bytearray(max(size, min(2 * before, self.capacity)))
        except MemoryError as error:
            raise PageError(f"there is no memory to keep track of page ids below {size}; number the pages densely") from error
        grown[:before] = self._bytes
        self._array = np.frombuffer(grown, np.bool_)
        self._bytes = grown

    def all_are(self, ids: NDArray[np.int64], *, members: bool) -> bool:
        """Whether all ids are in range, distinct, and all members (or all not members, and then they can be added).

        Raises PageError if there is no memory for ids within the capacity. Cost: O(len(ids)), and see `cover`.
        """
        count = len(ids)
        if count <= FEW:
            few: list[int] = ids.tolist()
            return self.few_are(few, members=members)
        data: bytes = ids.tobytes()
        if any_negative(data):
            return False
        first = run_start(data)
        if first >= 0:
            if first + count > len(self._bytes):
                return self._can_be_added(first + count - 1, members) and self.all_are(ids, members=members)
            return self._bytes.find(0 if members else 1, first, first + count) < 0
        try:
            found: NDArray[np.bool_] = self._array.take(ids)
        except IndexError:
            return self._can_be_added(int(ids.max()), members) and self.all_are(ids, members=members)
        return found.tobytes().find(0 if members else 1) < 0 and not self._has_twice(ids, count)

    def few_are(self, ids: list[int], *, members: bool) -> bool:
        """As `all_are`, for a short sequence that is not an array."""
        flags = self._bytes
        size = len(flags)
        for page in ids:
            if page < 0:
                return False
            if page >= size:
                return self._can_be_added(max(ids), members) and self.few_are(ids, members=members)
            if (flags[page] == 1) != members:
                return False
        return len(ids) < 2 or len(set(ids)) == len(ids)

    def _can_be_added(self, highest: int, members: bool) -> bool:
        """Whether ids up to one that there is no memory for yet can be what is asked about; then there is from now on."""
        if members or highest >= self.capacity:
            return False
        self.cover(highest + 1)
        return True

    def _has_twice(self, ids: NDArray[np.int64], count: int) -> bool:
        """Whether an id occurs twice: scatter the positions by id, and compare what is read back."""
        if len(self._order) < len(self._bytes):
            self._order = np.zeros(len(self._bytes), np.int32)
        if len(self._numbers) < count:
            self._numbers = np.arange(2 * count, dtype=np.int32)
            self._number_bytes = self._numbers.tobytes()
        self._order[ids] = self._numbers[:count]
        found: NDArray[np.int32] = self._order.take(ids)
        return not self._number_bytes.startswith(found.tobytes())

    def add(self, ids: NDArray[np.int64]) -> None:
        """Add ids, which are in range and covered, as `all_are` leaves them."""
        self.add_bytes(ids.tobytes())

    def discard(self, ids: NDArray[np.int64]) -> None:
        """Remove ids, which are members."""
        self.discard_bytes(ids.tobytes())

    def add_bytes(self, ids: bytes) -> None:
        """As `add`, for ids as int64 bytes."""
        self._set(ids, 1)

    def discard_bytes(self, ids: bytes) -> None:
        """As `discard`, for ids as int64 bytes."""
        self._set(ids, 0)

    def _set(self, ids: bytes, flag: int) -> None:
        count = len(ids) // INT64_BYTES
        if count <= FEW:
            flags = self._bytes
            for page in UNPACK[count](ids):
                flags[page] = flag
            return
        first = run_start(ids)
        if first >= 0:
            self._bytes[first : first + count] = (b"\1" if flag else b"\0") * count
        else:
            self._array[np.frombuffer(ids, INT64)] = flag
