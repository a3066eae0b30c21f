"""The prompts that are being computed: which tokens behind the tree's end another request will publish.

They stand in the order of their namespaces and tokens, so the one that agrees longest with a prompt is its neighbour there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from unified_tree.native.chosen import agreement

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key


@mypyc_attr(acyclic=True)
class Flight:
    """One prompt under way.

    Attributes:
        key: whose first `length` tokens are the prompt; None while it has not begun.
        is_found: it is under way.
    """

    __slots__ = ("is_found", "key", "length")

    def __init__(self, key: Key | None, length: int) -> None:
        self.key = key
        self.length = length
        self.is_found = False


class InFlight:
    """The prompts under way."""

    __slots__ = ("_agreed", "_flights", "_page_size", "_place", "_sought")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._flights: list[Flight] = []
        self._sought: Key | None = None  # which belongs at `_place`, and agrees so far with a neighbour there
        self._place: i64 = 0
        self._agreed: i64 = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._flights)

    def reach(self, key: Key, length: int) -> int:
        """How far another prompt under way agrees with a key that the tree knows up to `length`; 0 if none does beyond that.

        Cost: O(log n) comparisons of what neighbours have in common.
        """
        if not self._flights or length + self._page_size > key.length:
            return 0
        self._seek(key, key.length)
        return self._agreed if self._agreed > length else 0

    def begin(self, key: Key, count: int, length: int) -> Flight | None:
        """A prompt of `count` tokens will be computed from `length` on; None if it fills no whole page there."""
        flight = Flight(key, count)
        return flight if self.move(flight, length) else None

    def move(self, flight: Flight, length: int) -> bool:
        """The tree knows a prompt up to `length` now; whether it is still under way.

        Cost: O(1); as `reach` when it begins, and as `end` when it is over.
        """
        if length + self._page_size > flight.length:
            if flight.is_found:
                self.end(flight)
            return False
        if not flight.is_found:
            key = flight.key
            assert key is not None
            if key is not self._sought or key.length != flight.length:
                self._seek(key, flight.length)
            self._flights.insert(self._place, flight)
            self._sought = None
            flight.is_found = True
        return True

    def end(self, flight: Flight) -> None:
        """A prompt is under way no more. Cost: O(n) comparisons of references."""
        flight.is_found = False
        self._sought = None
        flights = self._flights
        for i in range(len(flights)):
            if flights[i] is flight:
                del flights[i]
                return

    def _seek(self, key: Key, count: i64) -> None:
        """Find the place of a key's first `count` tokens, behind its equals, and how far it agrees with a neighbour there."""
        flights = self._flights
        data, width = key.data, key.width_bytes
        page: i64 = self._page_size * width
        end: i64 = count * width
        low: i64 = 0
        high: i64 = len(flights)
        low_agreed: i64 = 0
        high_agreed: i64 = 0
        best: i64 = 0
        while low < high:
            middle = (low + high) // 2
            flight = flights[middle]
            other = flight.key
            assert other is not None
            agreed: i64 = 0
            if other.namespace != key.namespace:
                is_before = other.namespace < key.namespace
            elif other.bigram != key.bigram:
                is_before = key.bigram
            else:
                its_end: i64 = flight.length * width
                stop: i64 = min(end, its_end)
                agreed = min(low_agreed, high_agreed)  # so far all agree that stand between the two
                if agreed:
                    agreed += agreement(data, memoryview(other.data)[agreed:], agreed, stop, page)
                else:
                    agreed = agreement(data, other.data, 0, stop, page)
                best = max(best, agreed)
                after: i64 = agreed + page
                if after > its_end or after > end:
                    is_before = after > its_end
                else:
                    is_before = bytes(other.data[agreed:after]) < bytes(data[agreed:after])
            if is_before:
                low, low_agreed = middle + 1, agreed
            else:
                high, high_agreed = middle, agreed
        self._sought, self._place, self._agreed = key, low, best // width
