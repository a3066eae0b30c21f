"""Queues of values that are alike, and what a value in one is worth now.

Values that are alike wait in one queue: of the same kind, of one group of turns or of places alike, and with about as many
tokens lost for each token or state that they free. A queue's number says all of that, and is the rank of its values. `Worth`
says what a value of a queue is worth, by the time since its last use; while recency decides, that is the tick of its last use.

The value of a queue that is worth least stands at one of its ends (the oldest, or the newest where no session comes back
soon), or about an age between, at which values are worth less than before and after: where some sessions come back at once, and
the rest after a while. `Queues` notes what that one is worth when a value enters and when it is asked for. It falls with time,
so every few victims one more queue is looked at anew, and all of them when they come to be worth something else.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.nodes.node import Value
from unified_tree.nodes.order import preceding
from unified_tree.policies.density.survival import Survival
from unified_tree.policies.density.turns import MOST_OFF, Place, Places, half_octaves, octave_of_uses

if TYPE_CHECKING:
    from unified_tree.nodes.order import Order
    from unified_tree.policies.tree_view import TreeView

UNUSED: Final = 0
"""The queue of what was never used, or was superseded: it goes first."""
UNTOLD: Final = 1
SESSION: Final = 2
EARLIER: Final = 3
PLACE: Final = 4
KINDS: Final = (
    "never used, or superseded",
    "of a text without a session",
    "of a session",
    "before the last one of its session",
    "requests fork off here",
)
WEIGHT_BITS: Final = 6
GAP_BITS: Final = 6
KIND_SHIFT: Final = WEIGHT_BITS + GAP_BITS + 4
"""A queue's number has the half octave of the tokens lost lowest, then a group of turns, or the gap and uses of a place, then
its kind."""
WEIGHT_MASK: Final = (1 << WEIGHT_BITS) - 1
COPIED_OFF: Final = 8
"""A value with a copy on the other tier loses so many half octaves less: to load it costs about a sixteenth of computing it."""
WHOLE: Final = MOST_OFF + COPIED_OFF
"""The weight of a value whose loss costs its own tokens."""
GAP_MASK: Final = (1 << GAP_BITS) - 1
WHAT_MASK: Final = (1 << KIND_SHIFT - WEIGHT_BITS) - 1
WEIGHTS: Final[list[float]] = [2.0 ** ((i - WHOLE) / 2) for i in range(1 << WEIGHT_BITS)]
GAPS: Final[list[float]] = [2.0 ** (i / 2) - 1.0 for i in range(1 << GAP_BITS)]
COUNTED_AGES: Final = 64.0
"""Of about so many values that went, the age at which they did is noted."""
LAST_RESUMED: Final = 4.0
"""Before anything is known a session's last window or state is resumed from so many times as often as an earlier one."""
VICTIMS_A_LOOK: Final = 4
"""After so many victims one more queue is looked at: what it was noted with may have become less."""
FEW: Final = 64
"""Of at most so many evictable values all queues are looked at for each victim: a look costs little there, and what was noted
with the last ones may say nothing of now."""


def queue_of(kind: i64, what: i64, weight: i64) -> i64:
    """The number of a queue.

    Args:
        kind: one of those above.
        what: the group of turns, or the `place_class`.
        weight: half octaves of the tokens lost for each token or state freed; WHOLE for one.
    """
    return kind << KIND_SHIFT | what << WEIGHT_BITS | weight


def place_class(place: Place) -> i64:
    """The places that are worth the same: with about as many uses, about as far apart."""
    gap = min(GAP_MASK, half_octaves((place.last - place.first) / max(1, place.uses - 1) + 1.0))
    return i64(octave_of_uses(place.uses)) << GAP_BITS | gap


class Worth:
    """The worth of values, from what is learned of turns and places.

    Args:
        pools: how many pools there are on both tiers.

    Attributes:
        turns, places: what is learned.
        by_recency: whether recency decides.
        revision: how often all queues came to be worth something else.
    """

    def __init__(self, view: TreeView, pools: int) -> None:
        self._view = view
        self.turns = Survival(view.settings.remembered_turns)
        self.places = Places()
        self.by_recency = True
        self.revision = 0
        self._usual_ages = [1.0] * pools
        # How often a session's last window or state was resumed from, and an earlier one; and as shares of the larger.
        self._counts, self._resumed = [LAST_RESUMED, 1.0], [1.0, 1.0]

    @property
    def now(self) -> int:
        """See TreeView.now."""
        return self._view.now

    def of(self, pool: int, queue: i64, since: i64) -> float:
        """How many tokens are hit for keeping a value, for each tick and token of room; the least goes first. By recency it is
        the tick of its last use. Cost: O(1).

        Args:
            pool: values of one pool compare.
            queue: of the value. since: the tick of its last use.
        """
        return float(since) if self.by_recency else self.learned(pool, queue, since)

    def learned(self, pool: int, queue: i64, since: i64) -> float:
        """The same whether recency decides or not."""
        kind = queue >> KIND_SHIFT
        if kind == UNUSED:
            return -inf
        age = self.now - since
        usual = self._usual_ages[pool]
        weight = WEIGHTS[queue & WEIGHT_MASK]
        what = queue >> WEIGHT_BITS & WHAT_MASK
        if kind == UNTOLD:
            return weight / (float(age) + usual + 1.0)
        if kind != PLACE:
            worth = weight * self.turns.worth(what, age)
            return worth * self._resumed[1 if kind == EARLIER else 0]
        return weight * self.places.rate(what >> GAP_BITS, GAPS[what & GAP_MASK], float(age), usual)

    def better(self, pool: int, queue: i64, place: i64, touched: int) -> i64:
        """Of the queue of a value's session and that of its place the one that is worth more at the age at which values go."""
        if not self.turns.is_ready:
            return queue
        old = min(touched, self.now - int(self._usual_ages[pool]))
        return place if self.learned(pool, place, old) > self.learned(pool, queue, old) else queue

    def falls(self, queue: i64) -> bool:
        """Whether of a queue's values the one used last is worth most."""
        kind = queue >> KIND_SHIFT
        return self.by_recency or kind < SESSION or kind == PLACE or self.turns.falls(queue >> WEIGHT_BITS & WHAT_MASK)

    def lows(self, queue: i64) -> list[int]:
        """The ages at which values of a queue that does not fall are worth less than shortly before and after."""
        return self.turns.lows(queue >> WEIGHT_BITS & WHAT_MASK)

    def note_age(self, pool: int, touched: int) -> None:
        """A value that was used then is evicted. Cost: O(1)."""
        self._usual_ages[pool] += (self.now - touched - self._usual_ages[pool]) / COUNTED_AGES

    def note_resumed(self, *, is_last: bool) -> None:
        """A session went on from its last window or state, or from an earlier one. Cost: O(1)."""
        self._counts[0 if is_last else 1] += 1.0
        most = max(self._counts)
        self._resumed = [count / most for count in self._counts]

    def words(self, queue: int) -> tuple[str, str]:
        """A queue's values in words, and the cost of their loss; the latter is empty where it is their own tokens."""
        kind, what, tokens = queue >> KIND_SHIFT, queue >> WEIGHT_BITS & WHAT_MASK, WEIGHTS[queue & WEIGHT_MASK]
        said = KINDS[kind]
        if kind == EARLIER:
            said += f", resumed from {self._counts[1] / self._counts[0]:.1%} as often as that"
        if kind in (SESSION, EARLIER) and what < len(self.turns.shares):
            said += f", and {self.turns.shares[what]:.0%} of sessions like it go on"
        elif kind == PLACE:
            gap = GAPS[what & GAP_MASK]
            said += f", {'once so far' if what >> GAP_BITS <= 1 else f'about every {gap:,.0f} ticks'}"
        if kind != UNUSED and tokens < 1.0:
            return said, ", the other tier has it, too, or requests that go on seldom need it"
        if tokens > 1.5:
            return said, f", its loss costs about {tokens:,.0f} tokens for each token or state that it frees"
        return said, ""


@mypyc_attr(acyclic=True)
class Queue:
    """What is noted of one queue.

    Attributes:
        number: see `queue_of`.
        index: where it stands in the list of all. place: where it stands in their heap.
        worth: of the value that is worth least. since: when that was used last.
        depth: its `Ranked.depth`; of two values worth the same the one of the smaller depth goes first, as in an order.
    """

    __slots__ = ("depth", "index", "number", "place", "since", "worth")

    def __init__(self, number: int, index: int) -> None:
        self.number = number
        self.index = index
        self.place: i64 = index
        self.worth = inf
        self.since: i64 = 0
        self.depth: i64 = 0


def _is_less(worth: float, depth: i64, than: Queue) -> bool:
    return worth < than.worth or (worth == than.worth and depth < than.depth)


class Queues:
    """What the least of each queue is worth.

    Args:
        pool, urgency: all that is said here is of values of this pool and this urgency.
    """

    def __init__(self, worth: Worth, pool: int, urgency: int) -> None:
        self._worth = worth
        self._pool = pool
        self._urgency = urgency
        self._queues: list[Queue] = []
        self._heap: list[Queue] = []  # the same queues, by what the least of each is worth
        self._by_number: dict[int, Queue] = {}
        self._turn = 0
        self._revision = worth.revision
        self._last_number: i64 = -1  # what was noted last, if nothing was looked at behind it
        self._last_since: i64 = 0
        self._last_now: i64 = 0
        self._last_depth: i64 = 0

    def entered(self, number: i64, since: i64, depth: i64) -> None:
        """A value stands in a queue. Cost: O(1)."""
        now: i64 = self._worth.now
        if number == self._last_number and since == self._last_since and now == self._last_now and depth >= self._last_depth:
            return  # as the one before it, of the same request: learning is done before the first value of a tick is placed
        self._last_number, self._last_since, self._last_now, self._last_depth = number, since, now, depth
        queue = self._by_number.get(number)
        if queue is None:
            queue = self._by_number[number] = Queue(number, len(self._queues))
            self._queues.append(queue)
            self._heap.append(queue)
        elif since > queue.since and self._worth.falls(number):
            return
        worth = self._worth.of(self._pool, number, since)
        if _is_less(worth, depth, queue):
            self._note(queue, worth, since, depth)

    def least(self, order: Order) -> Value | None:
        """The value that is worth least, as far as is noted; None if there is none.

        Cost: O(log n) for each queue that it looks at, mostly one, all of at most FEW values.
        """
        self._last_number = -1
        if order.count <= FEW or self._revision != self._worth.revision:
            self._revision = self._worth.revision
            for queue in self._queues.copy():
                self._look_at(queue, order)
        self._turn += 1
        if self._turn % VICTIMS_A_LOOK == 0 and self._queues:
            self._look_at(self._queues[self._turn // VICTIMS_A_LOOK % len(self._queues)], order)
        while self._heap:
            least = self._heap[0]
            found = self._look_at(least, order)
            if found is not None and self._heap[0] is least:
                return found
        return None

    def likely(self, order: Order) -> Value | None:
        """As `least`, from all that is known now; notes nothing. Cost: O(queues log n)."""
        others = Queues(self._worth, self._pool, self._urgency)
        others._queues = [Queue(queue.number, queue.index) for queue in self._queues]
        others._heap = others._queues.copy()
        others._by_number = {queue.number: queue for queue in others._queues}
        others._revision = -1
        return others.least(order)

    def _note(self, queue: Queue, worth: float, since: i64, depth: i64) -> None:
        """Note what a queue's least value is worth. Cost: O(log queues)."""
        queue.worth, queue.since, queue.depth = worth, since, depth
        self._settle(queue, queue.place)

    def _settle(self, queue: Queue, at: i64) -> None:
        """Put a queue into the heap, from a place on whose queue is gone. Cost: O(log queues)."""
        heap = self._heap
        count: i64 = len(heap)
        while at > 0:
            above = heap[(at - 1) // 2]
            if not _is_less(queue.worth, queue.depth, above):
                break
            heap[at] = above
            above.place = at
            at = (at - 1) // 2
        while 2 * at + 1 < count:
            below: i64 = 2 * at + 1
            first = heap[below]
            if below + 1 < count and _is_less(heap[below + 1].worth, heap[below + 1].depth, first):
                below += 1
                first = heap[below]
            if not _is_less(first.worth, first.depth, queue):
                break
            heap[at] = first
            first.place = at
            at = below
        heap[at] = queue
        queue.place = at

    def _look_at(self, queue: Queue, order: Order) -> Value | None:
        """Note what the least of a queue is worth, and return it; None if the queue was empty, and is forgotten."""
        urgency, number = self._urgency, queue.number
        oldest = order.first_from(urgency, float(number))
        if not isinstance(oldest, Value) or oldest.urgency != urgency or oldest.rank != number:
            del self._by_number[number]
            last = self._queues.pop()
            if last is not queue:
                self._queues[queue.index] = last
                last.index = queue.index
            last = self._heap.pop()
            if last is not queue:
                self._settle(last, queue.place)
            return None
        found, worth = oldest, self._worth_of(oldest)
        newest = oldest if self._worth.falls(number) else order.last_up_to(urgency, float(number))
        assert isinstance(newest, Value)
        if newest is not oldest:
            found, worth = self._lesser(found, worth, newest)
            for age in self._worth.lows(number):
                at = float(self._worth.now - age)
                if not oldest.second_rank < at <= newest.second_rank:
                    continue
                if self._worth.of(self._pool, number, i64(at)) >= worth:
                    break
                # Both neighbours of that age: towards it worth falls from either side.
                behind = order.first_from(urgency, float(number), at)
                assert isinstance(behind, Value)
                before = preceding(behind)
                assert isinstance(before, Value)
                found, worth = self._lesser(*self._lesser(found, worth, before), behind)
        self._note(queue, worth, i64(found.second_rank), i64(found.depth))
        return found

    def _worth_of(self, value: Value) -> float:
        return self._worth.of(self._pool, i64(value.rank), i64(value.second_rank))

    def _lesser(self, value: Value, worth: float, other: Value) -> tuple[Value, float]:
        """Of a value and another one that which is worth less, and its worth."""
        other_worth = self._worth_of(other)
        is_less = other_worth < worth or (other_worth == worth and other.depth < value.depth)
        return (other, other_worth) if is_less else (value, worth)
