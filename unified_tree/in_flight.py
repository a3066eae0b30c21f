"""The prompts that are being computed: which tokens behind the tree's end another request will publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from unified_tree.ghosts import page_code
from unified_tree.matching import common_bytes

if TYPE_CHECKING:
    from unified_tree.keys import Key


@mypyc_attr(acyclic=True)
class Flight:
    """One prompt under way.

    Attributes:
        data, width_bytes, length: of its key.
        code: under which it is found; meaningless while it is not `is_found`.
    """

    __slots__ = ("code", "data", "is_found", "key", "length", "width_bytes")

    def __init__(self, key: Key, length: int) -> None:
        self.key = key
        self.data = key.data
        self.width_bytes = key.width_bytes
        self.length = length
        self.code: i64 = 0
        self.is_found = False


class InFlight:
    """The prompts under way, by the length at which the tree's knowledge of them ends and the page behind it.

    Of two prompts with the same page there only the later is found.
    """

    __slots__ = ("_flights", "_page_size")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._flights: dict[int, Flight] = {}

    @property
    def count(self) -> int:
        """How many can be found."""
        return len(self._flights)

    def reach(self, key: Key, length: int) -> int:
        """How far another prompt under way agrees with a key that the tree knows up to `length`; 0 if there is none.

        Cost: O(1), and a comparison if there is one.
        """
        size = self._page_size
        if length + size > key.length:
            return 0
        data, width = key.data, key.width_bytes
        flight = self._flights.get(page_code(length, data, length * width, size * width))
        if flight is None or flight.key.namespace != key.namespace or flight.key.bigram != key.bigram:
            return 0
        whole = min(key.length, flight.length) // size * size
        ours, theirs = bytes(data[: whole * width]), bytes(flight.data[: whole * width])
        end = (length + size) * width
        if not ours.startswith(theirs[:end]):
            return 0
        common = common_bytes(ours, theirs[length * width :], length * width, len(ours), size * width)
        return length + common // width

    def begin(self, key: Key, count: int, length: int) -> Flight | None:
        """A prompt of `count` tokens will be computed from `length` on; None if it fills no whole page there."""
        if length + self._page_size > count:
            return None
        flight = Flight(key, count)
        self.move(flight, length)
        return flight

    def move(self, flight: Flight, length: int) -> bool:
        """The tree knows a prompt up to `length` now; whether it is still under way. Cost: O(1)."""
        if flight.is_found:
            self.end(flight)
        if length + self._page_size > flight.length:
            return False
        width = flight.width_bytes
        flight.code = page_code(length, flight.data, length * width, self._page_size * width)
        flight.is_found = True
        self._flights[flight.code] = flight
        return True

    def end(self, flight: Flight) -> None:
        """A prompt is under way no more. Cost: O(1)."""
        code, flight.is_found = flight.code, False
        other = self._flights.pop(code, None)
        if other is not None and other is not flight:
            self._flights[code] = other
