"""Sets of page ids, with operations on many ids at a time."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from unified_tree.native.numpy_flags import BEYOND, YES, NumpyFlags
from unified_tree.terms.errors import PageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _compiled() -> Any:
    """The C module that does as NumpyFlags; None where it was not compiled."""
    try:
        from unified_tree.native import page_flags
    except ImportError:
        return None
    return page_flags


NATIVE: Final[Any] = _compiled()
FIRST_SIZE: Final = 1024
MAX_PAGES: Final = 1 << 32
"""Ids from here on cannot be tracked: a byte each, that would be more than 4 GiB."""


class PageSet:
    """A set of ids 0 … capacity - 1. It uses one byte an id, up to the largest id seen; an empty set of any capacity costs
    nothing.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: int = capacity  # one past the largest id it may hold
        self._flags = bytearray(min(capacity, FIRST_SIZE))
        way = NumpyFlags() if NATIVE is None else NATIVE
        self._are: Any = way.are  # looked up once: a call takes no longer than the look-up
        self._turn: Any = way.turn
        self._put: Any = way.put

    def contains(self, page: int) -> bool:
        """Whether one id is a member."""
        return 0 <= page < len(self._flags) and self._flags[page] == 1

    def count(self) -> int:
        """How many ids are members. Cost: O(capacity)."""
        return self._flags.count(1)

    def grow(self, capacity: int) -> None:
        """Allow ids below `capacity`, and room to spare. Cost: O(1)."""
        self.capacity = max(capacity, 2 * self.capacity)

    def cover(self, size: int) -> None:
        """Have memory for the ids below `size`, which is at most the capacity.

        Raises PageError, with nothing changed, if there is not enough. Cost: O(1), amortized over ids: memory grows by
        doubling.
        """
        before = len(self._flags)
        if size <= before:
            return
        assert size <= self.capacity
        if size > MAX_PAGES:
            raise PageError(f"page ids must be below {MAX_PAGES} to be kept track of, got {size - 1}")
        try:
            grown = bytearray(max(size, min(2 * before, self.capacity)))
        except MemoryError as error:
            raise PageError(f"there is no memory to keep track of page ids below {size}; number the pages densely") from error
        grown[:before] = self._flags
        self._flags = grown

    def all_are(self, ids: NDArray[np.int64], *, members: bool) -> bool:
        """Whether all ids are in range, distinct, and all members (or all not members, and then they can be added).

        Raises PageError if there is no memory for ids within the capacity. Cost: O(len(ids)), and see `cover`.
        """
        found: int = self._are(ids, self._flags, members)
        if found == BEYOND:
            return self._can_be_added(int(ids.max()), members) and self.all_are(ids, members=members)
        return found == YES

    def add_new(self, ids: NDArray[np.int64]) -> bool:
        """Add ids that are in range, distinct, and no members; returns whether they are. Raises and costs as `all_are`."""
        found: int = self._turn(ids, self._flags, True)
        if found == BEYOND:
            return self._can_be_added(int(ids.max()), False) and self.add_new(ids)
        return found == YES

    def discard_all(self, ids: NDArray[np.int64]) -> bool:
        """Remove ids that are distinct, and all members; returns whether they are. Cost: O(len(ids))."""
        found: int = self._turn(ids, self._flags, False)
        return found == YES

    def few_are(self, ids: list[int], *, members: bool) -> bool:
        """As `all_are`, for a short sequence that is not an array."""
        flags = self._flags
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

    def add_one(self, page: int) -> None:
        """Add an id that is in range and covered."""
        self._flags[page] = 1

    def discard_one(self, page: int) -> None:
        """Remove an id that is a member."""
        self._flags[page] = 0

    def add(self, ids: NDArray[np.int64] | bytes) -> None:
        """Add ids, an array or its bytes, which are in range and covered, as `all_are` leaves them."""
        self._put(ids, self._flags, True)

    def discard(self, ids: NDArray[np.int64] | bytes) -> None:
        """Remove ids, an array or its bytes, which are members."""
        self._put(ids, self._flags, False)

    def add_free(self, ids: bytes) -> bool:
        """Add ids, if they are in range, covered and distinct, and none is a member; whether they are."""
        if self._are(ids, self._flags, False) != YES:
            return False
        self._put(ids, self._flags, True)
        return True
