"""The queues of one urgency in an order: values of the same worth at the same age, by when they were used.

The rank of a value is its queue, so a queue is a part of the order, and the value of it that is worth least stands at one of
its ends: the oldest, or the newest where nobody comes back soon. What that one is worth is noted when a value enters and when
it is asked for. It falls with time, so every few victims one more queue is looked at anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unified_tree.node import Value

if TYPE_CHECKING:
    from unified_tree.order import Order
    from unified_tree.reuse import Reuse

VICTIMS_A_LOOK: Final = 4
"""After so many victims one more queue is looked at: what it was noted with may have become less."""


class Queues:
    """What the least of each queue is worth.

    Args:
        urgency: all that is said here is of values of this urgency.
    """

    def __init__(self, urgency: int, reuse: Reuse) -> None:
        self._urgency = urgency
        self._reuse = reuse
        self._numbers: list[int] = []
        self._worth: list[float] = []
        self._places: dict[int, int] = {}
        self._turn = 0

    def entered(self, number: int, since: int) -> None:
        """A value stands in a queue. Cost: O(1)."""
        worth = self._reuse.worth(number, since)
        place = self._places.get(number, -1)
        if place < 0:
            self._places[number] = len(self._numbers)
            self._numbers.append(number)
            self._worth.append(worth)
        elif worth < self._worth[place]:
            self._worth[place] = worth

    def least(self, order: Order) -> Value | None:
        """The value that is worth least, as far as is noted; None if there is none.

        Cost: O(log n) for each queue that it looks at, mostly two, and O(queues) for the smallest of their numbers.
        """
        self._turn += 1
        if self._turn % VICTIMS_A_LOOK == 0 and self._numbers:
            self._look_at(self._turn // VICTIMS_A_LOOK % len(self._numbers), order)
        while self._numbers:
            place = self._worth.index(min(self._worth))
            found = self._look_at(place, order)
            if found is not None and self._worth[place] <= min(self._worth):
                return found
        return None

    def _look_at(self, place: int, order: Order) -> Value | None:
        """Note what the least of a queue is worth, and return it; None if the queue was empty, and is forgotten."""
        urgency, number = self._urgency, self._numbers[place]
        oldest, newest = order.first_from(urgency, float(number)), order.last_up_to(urgency, float(number))
        is_there = oldest is not None and oldest.urgency == urgency and oldest.rank == number
        if not (is_there and isinstance(oldest, Value) and isinstance(newest, Value)):
            del self._places[number]
            last, worth = self._numbers.pop(), self._worth.pop()
            if place < len(self._numbers):
                self._numbers[place], self._worth[place], self._places[last] = last, worth, place
            return None
        of_oldest = self._reuse.worth(number, int(oldest.second_rank))
        of_newest = of_oldest if newest is oldest else self._reuse.worth(number, int(newest.second_rank))
        self._worth[place] = min(of_oldest, of_newest)
        return oldest if of_oldest <= of_newest else newest
