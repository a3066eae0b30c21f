"""The prompts that are being computed: which tokens behind the tree's end another request will publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from unified_tree.comparing import agreement, page_code

if TYPE_CHECKING:
    from unified_tree.keys import Key


@mypyc_attr(acyclic=True)
class Flight:
    """One prompt under way.

    Attributes:
        key: whose first `length` tokens are the prompt; None while it has not begun.
        known: up to where the tree knows it.
        code: under which it is found; meaningless while it is not `is_found`, or is the only one.
    """

    __slots__ = ("code", "is_found", "key", "known", "length")

    def __init__(self, key: Key | None, length: int) -> None:
        self.key = key
        self.length = length
        self.known = 0
        self.code: i64 = 0
        self.is_found = False


class InFlight:
    """The prompts under way, by the length at which the tree's knowledge of them ends and the page behind it.

    Of two prompts with the same page there only the later is found. A prompt that is alone under way is in no table.
    """

    __slots__ = ("_flights", "_only", "_page_size")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._only: Flight | None = None
        self._flights: dict[int, Flight] = {}

    @property
    def count(self) -> int:
        """How many can be found."""
        return len(self._flights) if self._only is None else 1

    def reach(self, key: Key, length: int) -> int:
        """How far another prompt under way agrees with a key that the tree knows up to `length`; 0 if there is none.

        Cost: O(1), and a comparison if there is one.
        """
        size = self._page_size
        if length + size > key.length:
            return 0
        data, width = key.data, key.width_bytes
        flight = self._only
        if flight is None:
            flight = self._flights.get(page_code(length, data, length * width, size * width))
        if flight is None or flight.known != length:
            return 0
        other = flight.key
        if other is None or other.namespace != key.namespace or other.bigram != key.bigram:
            return 0
        common = agreement(data, other.data, 0, min(key.length, flight.length) * width, size * width) // width
        return common if common > length else 0

    def begin(self, key: Key, count: int, length: int) -> Flight | None:
        """A prompt of `count` tokens will be computed from `length` on; None if it fills no whole page there."""
        flight = Flight(key, count)
        return flight if self.move(flight, length) else None

    def move(self, flight: Flight, length: int) -> bool:
        """The tree knows a prompt up to `length` now; whether it is still under way. Cost: O(1)."""
        if flight.is_found:
            self.end(flight)
        if length + self._page_size > flight.length:
            return False
        flight.known = length
        flight.is_found = True
        only = self._only
        if only is None and not self._flights:
            self._only = flight
            return True
        if only is not None:
            self._only = None
            self._file(only)
        self._file(flight)
        return True

    def _file(self, flight: Flight) -> None:
        """Put a prompt into the table."""
        key = flight.key
        assert key is not None
        width = key.width_bytes
        flight.code = page_code(flight.known, key.data, flight.known * width, self._page_size * width)
        self._flights[flight.code] = flight

    def end(self, flight: Flight) -> None:
        """A prompt is under way no more. Cost: O(1)."""
        flight.is_found = False
        if self._only is flight:
            self._only = None
            return
        other = self._flights.pop(flight.code, None)
        if other is not None and other is not flight:
            self._flights[flight.code] = other
