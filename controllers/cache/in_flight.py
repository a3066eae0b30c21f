"""The prompts that are being computed: which tokens behind the tree's end another request will publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from unified_tree.ghosts import page_code
from unified_tree.matching import common_bytes

if TYPE_CHECKING:
    from unified_tree.keys import Key


@mypyc_attr(acyclic=True)
class Flight:
    """One prompt under way.

    Attributes:
        namespace, bigram, data, width_bytes, length: of its key.
        code: under which it is found; 0 while it has no whole page to publish.
    """

    __slots__ = ("bigram", "code", "data", "length", "namespace", "width_bytes")

    def __init__(self, key: Key) -> None:
        self.namespace = key.namespace
        self.bigram = key.bigram
        self.data = key.data
        self.width_bytes = key.width_bytes
        self.length = key.length
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
        width, size = key.width_bytes, self._page_size
        flight = self._flights.get(_code(key.data, length * width, size * width, length))
        if flight is None or flight.namespace != key.namespace or flight.bigram != key.bigram:
            return 0
        whole = min(key.length, flight.length) // size * size
        ours, theirs = bytes(key.data[: whole * width]), bytes(flight.data[: whole * width])
        end = (length + size) * width
        if not ours.startswith(theirs[:end]):
            return 0
        common = common_bytes(ours, theirs[length * width :], length * width, len(ours), size * width)
        return length + common // width

    def begin(self, key: Key, length: int) -> Flight | None:
        """A prompt will be computed from `length` on; None if it fills no whole page there."""
        if length + self._page_size > key.length:
            return None
        flight = Flight(key)
        self.move(flight, length)
        return flight

    def move(self, flight: Flight, length: int) -> bool:
        """The tree knows a prompt up to `length` now; whether it is still under way. Cost: O(1)."""
        if flight.code:
            self.end(flight)
        if length + self._page_size > flight.length:
            return False
        width = flight.width_bytes
        flight.code = _code(flight.data, length * width, self._page_size * width, length)
        self._flights[flight.code] = flight
        return True

    def end(self, flight: Flight) -> None:
        """A prompt is under way no more. Cost: O(1)."""
        if self._flights.get(flight.code) is flight:
            del self._flights[flight.code]
        flight.code = 0


def _code(data: bytes | memoryview, position: int, page_bytes: int, length: int) -> int:
    page = data[position : position + page_bytes]
    return page_code(length, page if isinstance(page, bytes) else bytes(page))
