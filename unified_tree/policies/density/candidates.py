"""Candidates: the values of one pool that are worth least, as far as they were looked at.

A value's worth changes with time, so no order holds. Each value is looked at when it becomes evictable, and again as a hand
goes round the order of last uses, a few values for each victim: LHD (Beckmann, Chen and Cidon, 2018) and Redis draw samples
likewise. The values of least worth are kept; the least of them goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from unified_tree.nodes.node import Value
from unified_tree.nodes.order import following

if TYPE_CHECKING:
    from unified_tree.nodes.order import Order, Ranked
    from unified_tree.policies.density.worth import Worth

KEPT: Final = 16
"""So many values are kept."""
A_VICTIM: Final = 4
"""The hand passes so many values for each victim."""


@mypyc_attr(acyclic=True)
class Candidate:
    """A value, and its worth when it was looked at last."""

    __slots__ = ("value", "worth")

    def __init__(self, value: Value, worth: float) -> None:
        self.value = value
        self.worth = worth


class Candidates:
    """The candidates of one order and urgency."""

    def __init__(self, worth: Worth, urgency: int) -> None:
        self._worth = worth
        self._urgency = urgency
        self._kept: list[Candidate] = []
        self._hand: Value | None = None
        self._hand_rank = 0.0
        self._revision = -1

    def look_at(self, value: Value) -> None:
        """Keep a value if it is worth less than some that is kept. Cost: O(KEPT), and that of its worth."""
        worth, most = self._worth.of(value), None
        for kept in self._kept:
            if kept.value is value:
                kept.worth = worth
                return
            if most is None or kept.worth > most.worth:
                most = kept
        if most is None or len(self._kept) < KEPT:
            self._kept.append(Candidate(value, worth))
        elif worth < most.worth:
            most.value, most.worth = value, worth

    def least(self, order: Order, first: Value) -> Value:
        """The value that is worth least, as far as is known. Cost: O(log n), and that of at least A_VICTIM + 1 worths.

        Args:
            order: by last use. first: of its values of this urgency.
        """
        self._kept = [kept for kept in self._kept if self._is_here(kept.value)]
        if self._revision != self._worth.revision:
            self._revision = self._worth.revision
            for kept in self._kept:
                kept.worth = self._worth.of(kept.value)
        self._go_round(order, first)
        before: Candidate | None = None
        while True:
            least = self._kept[0]
            for kept in self._kept:
                if kept.worth < least.worth or (kept.worth == least.worth and kept.value.depth < least.value.depth):
                    least = kept
            was, least.worth = least.worth, self._worth.of(least.value)
            if least is before or least.worth <= was:
                return least.value
            before = least  # what its loss costs has grown since: another may be worth less

    def _go_round(self, order: Order, first: Value) -> None:
        hand: Ranked | None
        if self._hand is None:
            hand = first
        elif self._is_here(self._hand):
            hand = following(self._hand)
        else:
            hand = order.first_from(self._urgency, self._hand_rank)
        for _ in range(min(A_VICTIM, order.count)):
            value = hand if isinstance(hand, Value) and hand.urgency == self._urgency else first
            self._hand, self._hand_rank = value, value.rank
            self.look_at(value)
            hand = following(value)

    def copy(self) -> Candidates:
        """The same, so that `least` can be asked without a trace. Cost: O(KEPT)."""
        other = Candidates(self._worth, self._urgency)
        other._kept = [Candidate(kept.value, kept.worth) for kept in self._kept]
        other._hand, other._hand_rank, other._revision = self._hand, self._hand_rank, self._revision
        return other

    def _is_here(self, value: Value) -> bool:
        return value.is_placed and value.urgency == self._urgency
