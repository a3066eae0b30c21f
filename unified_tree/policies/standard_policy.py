"""The base of the policies of this library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.nodes.node import Node, Value
    from unified_tree.nodes.order import Order
    from unified_tree.policies.tree_view import TreeView


@mypyc_attr(allow_interpreted_subclasses=False)
class Standard:
    """The base of the policies of this library: see EvictionPolicy, whose events do nothing here.

    It ranks from `touched`, `hits`, `created` and `priority` alone, which the tree keeps.

    Attributes:
        by_use: whether a use changes a rank.
        chooses: whether it chooses victims other than by rank.
        hears_uses: whether it wants the event `touched`; `hears_texts`: those of texts; `hears_locks`: those of locks.
        weighs_copies: whether a rank depends on a copy on the other tier.
    """

    by_use = True
    chooses = False
    compares_across_pools = True
    follows_texts = False
    hears_uses = False
    hears_texts = False
    hears_locks = False
    weighs_copies = False

    def __init__(self, view: TreeView) -> None:
        self._view = view

    def rank(self, value: Value) -> tuple[float, float]:
        """Least recently used first."""
        return (float(value.touched), 0.0)

    def placed(self, value: Value) -> None:
        """Nothing to note."""

    def standing(self, value: Value) -> tuple[float, float]:
        """How a placed value compares with those of other pools in one budget: the smallest goes first."""
        return (value.rank, value.second_rank)

    def next_victim(self, order: Order, first: Value) -> Value:  # noqa: ARG002
        """The first of the order."""
        return first

    def likely_victim(self, order: Order, first: Value) -> Value | None:  # noqa: ARG002
        """The first of the order."""
        return first

    def reason(self, value: Value) -> object:
        """Its rank."""
        return (value.rank, value.second_rank)

    def explain(self, reason: object, now: int) -> str:
        """In the words of `in_words`."""
        assert isinstance(reason, tuple)
        return self.in_words(reason[0], reason[1], now)

    def in_words(self, rank: float, second_rank: float, now: int) -> str:  # noqa: ARG002
        """Why a value of some rank stood where it did; by its last use."""
        return f"{last_used(rank, now)}; the least recently used goes first"

    def figures(self) -> Mapping[str, float]:
        """None."""
        return {}

    def touched(self, value: Value) -> None:
        """Nothing to keep."""

    def went(self, value: Value, is_whole: bool) -> None:
        """Nothing to learn."""

    def arrived(self, node: Node | None, length: int, hit: int) -> object:  # noqa: ARG002
        """Nothing to remember."""
        return None

    def withdrew(self, arrival: object) -> None:
        """Nothing to take back."""

    def grew(self, node: Node, last: int, arrival: object) -> None:
        """Nothing to learn."""

    def published(self, node: Node, length: int) -> None:
        """Nothing to learn."""

    def saved(self, node: Node, resumed: int, arrival: object) -> None:
        """Nothing to learn."""

    def locked(self, node: Node) -> None:
        """Nothing to learn."""

    def unlocked(self, node: Node) -> None:
        """Nothing to learn."""


def last_used(touched: float, now: int) -> str:
    """When a value was used last, in words."""
    count = now - touched
    return f"unused for {count:,.0f} {'tick' if count == 1 else 'ticks'}"
