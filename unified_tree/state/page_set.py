"""Which page ids of a pool the tree owns: sets of ids, with operations on many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from unified_tree.native.fallbacks import BEYOND, YES, NumpyFlags
from unified_tree.terms.errors import PageError
from unified_tree.terms.tier import PAGE_ID_BYTES

if TYPE_CHECKING:
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


class PageLedger:
    """Which pages of a pool the tree owns; grows on demand if the pool's size was not given.

    Attributes:
        in_flight_pages: how many are the targets of open transfers.
    """

    __slots__ = ("_name", "_owned", "in_flight_pages", "page_count")

    def __init__(self, name: str, page_count: int | None) -> None:
        self._name = name
        self.page_count = page_count
        self._owned = PageSet(page_count if page_count is not None else 1024)
        self.in_flight_pages = 0

    def take_free(self, ids: NDArray[np.int64]) -> bool:
        """Mark these pages as the tree's, if every id is within the current range, distinct, and not the tree's; returns
        whether they are. Cost: O(len(ids)).
        """
        return self._owned.add_new(ids)

    def take(self, ids: NDArray[np.int64]) -> None:
        """Mark these pages as the tree's. Raises as `check`, with nothing changed. Cost: O(len(ids))."""
        if not self.take_free(ids):
            self.check(ids)  # says what is wrong, or has more ids from now on
            self.acquire(ids)

    def check(self, ids: NDArray[np.int64]) -> None:
        """Raise PageError unless every id is in range, distinct, and not the tree's. Cost: O(len(ids))."""
        if self._owned.all_are(ids, members=False):
            return
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0:
            raise PageError(f"{self._name}: page ids must be zero or more, got {lowest}")
        if highest >= self._owned.capacity:
            self._grow(highest)
            self.check(ids)
            return
        owned = [page for page in ids.tolist() if self._owned.contains(page)]
        if owned:
            raise PageError(f"{self._name}: page {owned[0]} is already owned by the tree")
        unique, counts = np.unique(ids, return_counts=True)
        raise PageError(f"{self._name}: page {int(unique[counts > 1][0])} is given twice")

    def check_few(self, ids: list[int]) -> None:
        """As `check`, for a short sequence that is not an array."""
        if not self._owned.few_are(ids, members=False):
            self.check(np.asarray(ids, np.int64))

    def _grow(self, highest: int) -> None:
        if self.page_count is not None:
            raise PageError(f"{self._name}: page ids must be below {self.page_count}, got {highest}")
        if highest >= MAX_PAGES:
            raise PageError(f"{self._name}: page id {highest} is no dense index; declare page_counts for a pool this large")
        self._owned.grow(highest + 1)

    def owns(self, page: int) -> bool:
        """Whether the tree owns this page."""
        return self._owned.contains(page)

    def acquire(self, pages: NDArray[np.int64] | bytes) -> None:
        """Mark these pages, which were checked, as the tree's."""
        self._owned.add(pages)

    def release(self, pages: NDArray[np.int64] | bytes) -> None:
        """Mark these pages as free."""
        self._owned.discard(pages)

    def claim(self, pages: bytes) -> None:
        """Mark these pages as a transfer's until it ends. Raises as `check`, with nothing changed."""
        if not self._owned.add_free(pages):
            self.check(np.frombuffer(pages, np.int64))
            self._owned.add(pages)
        self.in_flight_pages += len(pages) // PAGE_ID_BYTES

    def unclaim(self, pages: bytes) -> None:
        """The transfer that claimed these pages ended, and they are free."""
        self._owned.discard(pages)
        self.in_flight_pages -= len(pages) // PAGE_ID_BYTES

    def landing(self, pages: bytes) -> None:
        """The transfer that claimed these pages has put its state there: they are the tree's."""
        self.in_flight_pages -= len(pages) // PAGE_ID_BYTES

    def owned_count(self) -> int:
        """How many pages the tree's nodes own. Cost: O(pool); for checks."""
        return self._owned.count() - self.in_flight_pages


class PageSource:
    """A tier's free pages, for effects that take their targets there. The base of whatever has them; it has none.

    An effect may ask it instead of a function or a mapping, and is spared most of the checks of what it is given.
    """

    __slots__ = ()

    def take_each(self, components: list[int], counts: list[int]) -> list[NDArray[np.int64]]:
        """So many pages of each of these components, which may evict unlocked values of the tree, all or nothing.

        Raises OutOfPagesError with nothing changed. Nobody changes the arrays.
        """
        raise NotImplementedError
