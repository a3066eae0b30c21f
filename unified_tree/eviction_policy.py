"""The protocol of custom eviction policies: what the tree asks of a policy, and what a policy may keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from unified_tree.node import Value

Rank: TypeAlias = float | tuple[float, float]
"""One number, or two that are compared in turn. Infinities are allowed, NaN is not; a number of numpy's is taken as a float."""
RestoreCost = Callable[["Value"], float]
"""What it costs to bring a value back, per byte it frees; larger is worth keeping. Units: FLOPs a byte."""


class EvictionPolicy(Protocol):
    """Ranks the values of one pool; the smallest rank is evicted first. One instance serves one pool and shares nothing.

    A value is what one component keeps at one node on one tier. A policy reads what the tree keeps at it: `touched` and
    `created` (the tree's clock at the last use and at creation), `hits`, `priority`, `page_count`, `node.end` (the prefix's
    length in tokens). It may keep a float in `value.score` and any object in `value.policy_state`, which is None at first and
    which nobody else writes. A split copies both to the two halves, so keep immutable objects there. A node that becomes a leaf
    again takes the larger score of itself and the removed child, and the state of the one used last. Kept objects must not
    refer to values or nodes, because the garbage collector does not traverse those.

    A policy that raises, or returns a rank that is not a number, stays in use. The value in question is then ranked below all
    values with a valid rank, least recently used first, and `Pool.policy_failures` counts the failure.

    In a budget that the pools of a tier share (`BlockBudget`) the values of all pools are ranked against each other. A policy
    whose ranks allow that, because they are times or counts of the whole tree, says so by an attribute
    `compares_across_pools` that is true; without it such a budget is refused.

    `unified_tree.controllers.testing.check_policy` checks a policy against all of this.
    """

    def touched(self, value: Value) -> None:
        """A value was created or used; its rank is asked for next."""

    def rank(self, value: Value) -> Rank:
        """The value's rank now; reads the value, changes nothing in the tree.

        It may only change when the value is used, or loses its end.
        """
        ...

    def evicted(self, value: Value) -> None:
        """The value was chosen as a victim, all of it. Of one that only loses its end the rank is asked for again."""


class AdmissionPolicy(EvictionPolicy, Protocol):
    """An eviction policy that also says which windows and states are kept at all. Paths are always kept."""

    def admits(self, value: Value) -> bool:
        """Whether an `insert` that brings this window or state may keep it. Asked of a device pool's policy before `touched`.

        The value knows its node, but is not in the tree yet. The page of a refused state comes back as a duplicate. If a window
        is refused, the caller keeps its pages and those of all other windows of that insert, and none of them is in
        `InsertResult.canonical`. If this method raises, the value is admitted and a failure is counted.
        """
        ...


PolicyFactory = Callable[[RestoreCost], EvictionPolicy]
"""Makes a policy; called once a pool, with what it costs to bring back a value of that pool."""
