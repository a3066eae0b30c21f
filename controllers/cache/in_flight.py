"""The prompts that are being computed: which tokens behind the tree's end another request will publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.matching import common_bytes

if TYPE_CHECKING:
    from unified_tree.keys import Key


class Flight:
    """One prompt under way.

    Attributes:
        key: the prompt's.
        code: under which it is found; 0 while it has no whole page to publish.
    """

    __slots__ = ("code", "key")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.code = 0


class InFlight:
    """The prompts under way, by the length at which the tree's knowledge of them ends and the page behind it.

    Of two prompts with the same page there only the later is found.
    """

    __slots__ = ("_flights", "_page_size")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._flights: dict[int, Flight] = {}

    def reach(self, key: Key, length: int) -> int:
        """How far another prompt under way agrees with a key that the tree knows up to `length`; 0 if there is none.

        Cost: O(1), and a comparison if there is one.
        """
        if not self._flights:
            return 0
        flight = self._flights.get(self._code(key, length))
        if flight is None or flight.key.namespace != key.namespace or flight.key.bigram != key.bigram:
            return 0
        width, size = key.width_bytes, self._page_size
        page_bytes, whole = size * width, min(key.length, flight.key.length) // size * size
        ours, theirs = bytes(key.data[: whole * width]), bytes(flight.key.data[: whole * width])
        if not ours.startswith(theirs[: length * width]):
            return 0
        return length + common_bytes(ours, theirs[length * width :], length * width, len(ours), page_bytes) // width

    def begin(self, key: Key, length: int) -> Flight | None:
        """A prompt will be computed from `length` on; None if it fills no whole page there."""
        flight = Flight(key)
        return flight if self.move(flight, length) else None

    def move(self, flight: Flight, length: int) -> bool:
        """The tree knows a prompt up to `length` now; whether it is still under way. Cost: O(1)."""
        self.end(flight)
        key = flight.key
        if length + self._page_size > key.length:
            return False
        flight.code = self._code(key, length)
        self._flights[flight.code] = flight
        return True

    def end(self, flight: Flight) -> None:
        """A prompt is under way no more. Cost: O(1)."""
        if self._flights.get(flight.code) is flight:
            del self._flights[flight.code]
        flight.code = 0

    def _code(self, key: Key, length: int) -> int:
        width = key.width_bytes
        return hash((length, bytes(key.data[length * width : (length + self._page_size) * width])))
