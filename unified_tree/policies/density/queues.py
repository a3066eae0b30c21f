"""The queues of one urgency in an order: values of the same worth at the same age, by when they were used.

The rank of a value is its queue's number, so a queue is a part of the order. The value of it that is worth least stands at one
of its ends (the oldest, or the newest where nobody comes back soon), or about an age between, at which values are worth less
than before and after: where some come back at once, and others after a while. What that one is worth is noted when a value
enters and when it is asked for. It falls with time, so every few victims one more queue is looked at anew, and all of them when
values are ranked in another way.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.nodes.node import Value
from unified_tree.nodes.order import preceding

if TYPE_CHECKING:
    from unified_tree.nodes.order import Order
    from unified_tree.policies.density.hit_density import HitDensity

VICTIMS_A_LOOK: Final = 4
"""After so many victims one more queue is looked at: what it was noted with may have become less."""
FEW: Final = 64
"""Of at most so many evictable values all queues are looked at for each victim: a look costs little there, and what was noted
with the last ones may say nothing of now."""


@mypyc_attr(acyclic=True)
class Queue:
    """What is noted of one queue.

    Attributes:
        number: see `HitDensity.rank`.
        place: where it stands in the list of all.
        worth: of the value that is worth least. since: when that was used last.
        depth: its `Ranked.depth`; of two values worth the same the one of the smaller depth goes first, as in an order.
    """

    __slots__ = ("depth", "number", "place", "since", "worth")

    def __init__(self, number: int, place: int) -> None:
        self.number = number
        self.place = place
        self.worth = inf
        self.since: i64 = 0
        self.depth: i64 = 0


class Queues:
    """What the least of each queue is worth.

    Args:
        pool, urgency: all that is said here is of values of this pool and this urgency.
    """

    def __init__(self, policy: HitDensity, pool: int, urgency: int) -> None:
        self._policy = policy
        self._pool = pool
        self._urgency = urgency
        self._queues: list[Queue] = []
        self._by_number: dict[int, Queue] = {}
        self._turn = 0
        self._rankings = policy.rankings
        self._last_number: i64 = -1  # what was noted last, if nothing was looked at behind it
        self._last_since: i64 = 0
        self._last_now: i64 = 0
        self._last_depth: i64 = 0

    def entered(self, number: i64, since: i64, depth: i64) -> None:
        """A value stands in a queue. Cost: O(1)."""
        now: i64 = self._policy.now
        if number == self._last_number and since == self._last_since and now == self._last_now and depth >= self._last_depth:
            return  # as the one before it, of the same request: learning is done before the first value of a tick is placed
        self._last_number, self._last_since, self._last_now, self._last_depth = number, since, now, depth
        queue = self._by_number.get(number)
        if queue is None:
            queue = self._by_number[number] = Queue(number, len(self._queues))
            self._queues.append(queue)
        elif since > queue.since and self._policy.falls(number):
            return
        self._note(queue, self._policy.worth(self._pool, number, since), since, depth)

    def least(self, order: Order) -> Value | None:
        """The value that is worth least, as far as is noted; None if there is none.

        Cost: O(log n) for each queue that it looks at, mostly one, all of at most FEW values; O(queues) for the smallest note.
        """
        self._last_number = -1
        if order.count <= FEW or self._rankings != self._policy.rankings:
            self._rankings = self._policy.rankings
            for queue in self._queues.copy():
                self._look_at(queue, order)
        self._turn += 1
        if self._turn % VICTIMS_A_LOOK == 0 and self._queues:
            self._look_at(self._queues[self._turn // VICTIMS_A_LOOK % len(self._queues)], order)
        while self._queues:
            least, next_worth, next_depth = self._queues[0], inf, i64(0)
            for queue in self._queues:
                worth = queue.worth
                if worth < least.worth or (worth == least.worth and queue.depth < least.depth):
                    next_worth, next_depth = least.worth, least.depth
                    least = queue
                elif queue is not least and (worth < next_worth or (worth == next_worth and queue.depth < next_depth)):
                    next_worth, next_depth = worth, queue.depth
            found = self._look_at(least, order)
            if found is not None and (least.worth < next_worth or (least.worth == next_worth and least.depth <= next_depth)):
                return found
        return None

    def likely(self, order: Order) -> Value | None:
        """As `least`, from all that is known now; notes nothing. Cost: O(queues log n)."""
        others = Queues(self._policy, self._pool, self._urgency)
        others._queues = [Queue(queue.number, queue.place) for queue in self._queues]
        others._by_number = {queue.number: queue for queue in others._queues}
        others._rankings = -1
        return others.least(order)

    def _note(self, queue: Queue, worth: float, since: i64, depth: i64) -> bool:
        """Whether a value is worth less than the one that is noted; then it is noted."""
        is_less = worth < queue.worth or (worth == queue.worth and depth < queue.depth)
        if is_less:
            queue.worth, queue.since, queue.depth = worth, since, depth
        return is_less

    def _look_at(self, queue: Queue, order: Order) -> Value | None:
        """Note what the least of a queue is worth, and return it; None if the queue was empty, and is forgotten."""
        urgency, number = self._urgency, queue.number
        oldest, newest = order.first_from(urgency, float(number)), order.last_up_to(urgency, float(number))
        is_there = oldest is not None and oldest.urgency == urgency and oldest.rank == number
        if not (is_there and isinstance(oldest, Value) and isinstance(newest, Value)):
            del self._by_number[number]
            last = self._queues.pop()
            if last is not queue:
                self._queues[queue.place] = last
                last.place = queue.place
            return None
        found = oldest
        queue.worth, since = inf, i64(oldest.second_rank)
        self._note(queue, self._policy.worth(self._pool, number, since), since, i64(oldest.depth))
        if newest is oldest or self._policy.falls(number):
            return found
        since = i64(newest.second_rank)
        if self._note(queue, self._policy.worth(self._pool, number, since), since, i64(newest.depth)):
            found = newest
        for age in self._policy.lows(number):
            at = float(self._policy.now - age)
            if not oldest.second_rank < at <= newest.second_rank:
                continue
            if self._policy.worth(self._pool, number, i64(at)) >= queue.worth:
                break
            # Both neighbours of that age: towards it worth falls from either side.
            behind = order.first_from(urgency, float(number), at)
            assert isinstance(behind, Value)
            before = preceding(behind)
            assert isinstance(before, Value)
            for value in (before, behind):
                since = i64(value.second_rank)
                if self._note(queue, self._policy.worth(self._pool, number, since), since, i64(value.depth)):
                    found = value
        return found
