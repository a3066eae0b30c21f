"""The protocol of eviction policies: what the tree tells a policy, what it asks, and what a policy may look at.

All policies are made of this protocol, the default one included. The tree knows none of them by type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node, Value
    from unified_tree.nodes.order import Order
    from unified_tree.policies.standard_policy import Standard
    from unified_tree.policies.tree_view import TreeView

Rank: TypeAlias = float | tuple[float, float]
"""One number, or two that are compared in turn. Infinities are allowed, NaN is not; a number of numpy's is taken as a float."""


class EvictionPolicy(ABC):
    """Says which value goes next. One instance serves one tree, all its pools on both tiers.

    A value is what one component keeps at one node on one tier. A policy may read its `component`, `tier`, `node.end` (the
    prefix's length in tokens), `page_count`, `created`, `touched`, `hits`, `priority`, `copied`, `stranded`, `spare` and
    `demoted`; and of one in an order `urgency`, `rank` and `second_rank`.

    A policy may keep a float in `value.score`, at first 0, and any object in `value.policy_state`, at first None. A split
    copies both to the two halves, so keep immutable objects there. If a child is evicted, its parent takes the larger score of
    both, and the state of the one used last. Kept objects must not refer to values or nodes, because the garbage collector
    does not traverse those.

    Derive from this class; only `rank` has to be there. The tree calls only what is overridden, so an event that a policy
    ignores costs nothing. No method may call the cache or the tree, which are in the middle of a change.

    A policy that raises, or returns a rank that is not a number, stays in use. The value in question is then ranked below all
    values with a valid rank, least recently used first, and `Pool.policy_failures` counts the failure.

    `unified_tree.controllers.testing.check_policy` checks a policy against all of this.

    Attributes:
        compares_across_pools: ranks are times or counts of the whole tree, so values of several pools can be ranked against
            each other. A budget that pools share (`BlockBudget`) needs that, and is refused without.
        follows_texts: nodes have a `line`, which names the text that they are a part of and outlives them: it is the same when
            a text comes back after its eviction. A policy may keep any object in `line.policy_state`.
        weighs_copies: ranks depend on `value.copied`, so the tree asks again when a copy on the other tier comes or goes.
    """

    compares_across_pools: bool = False
    follows_texts: bool = False
    weighs_copies: bool = False

    # -- ranking

    @abstractmethod
    def rank(self, value: Value) -> Rank:
        """The value's rank now; the smallest is evicted first. Reads, and changes nothing in the tree.

        The tree asks when an evictable value is used, when a value becomes evictable, and at `TreeView.reorder`. In between the
        rank may not change, unless the policy chooses victims itself.
        """

    def placed(self, value: Value) -> None:  # noqa: B027
        """An evictable value stands in its pool's order now, by `value.urgency`, `value.rank` and `value.second_rank`."""

    def next_victim(self, order: Order, first: Value) -> Value:  # noqa: ARG002
        """The next victim of a pool, which stays where it is; by default the one of the smallest rank.

        Args:
            order: the pool's evictable values (with tenants, of one group), the smallest rank first; see `Order.first_from`,
                `last_up_to`, and the functions `following` and `preceding` of `unified_tree.nodes.order`.
            first: the one with the smallest rank. The victim must be of its `urgency`, the number of its class. The method is
                not asked while a stranded or spare value can go.
        """
        return first

    def likely_victim(self, order: Order, first: Value) -> Value | None:  # noqa: ARG002
        """The value that `next_victim` would choose now, for `explain`, which may ask at any time: notes nothing. None, as by
        default, if it cannot be said.
        """
        return None

    def standing(self, value: Value) -> Rank:
        """How an evictable value compares now with those of other pools that share a budget; the smallest goes first."""
        return value.rank, value.second_rank

    def reason(self, value: Value) -> object:
        """What `explain` needs to know of an evictable value; by default its `rank` and `second_rank`. The tree keeps it of
        victims, so return something small that refers to no value and no node.
        """
        return value.rank, value.second_rank

    def explain(self, reason: Any, now: int) -> str:  # noqa: ARG002
        """Why a value stood where it did when the tree's clock showed `now`, in words for people, with the rule behind a
        semicolon: `unused for 22 ticks; the least recently used goes first`.

        Args:
            reason: the result of `reason` at that time.
        """
        return f"ranked {reason[0]:g}; the smallest rank goes first"

    def figures(self) -> Mapping[str, float]:
        """Numbers by which the policy shows what it does now, by names in snake case, for `stats()` and metrics; none by
        default. Called at each scrape, so O(1); not again once it has failed.
        """
        return {}

    # -- events of values

    def touched(self, value: Value) -> None:  # noqa: B027
        """A value was created or used, or outlives a copy on device that was used later. Its rank is asked for next, or when
        its lock ends. A split, and the eviction of a child, call `rank` alone.
        """

    def went(self, value: Value, *, is_whole: bool) -> None:  # noqa: B027
        """The value was chosen as a victim, of whatever class; if not `is_whole`, it only loses its end, and its rank is asked
        for again. Not called for values that leave otherwise: with their node, with an old weights version, or for a longer
        window.
        """

    # -- events of texts

    def arrived(self, node: Node | None, length: int, hit: int) -> object:  # noqa: B027
        """A request has come whose prompt the tree knows up to `length`, and can resume at `hit`. `grew`, `saved` and
        `withdrew` get the returned object as `arrival`.

        Args:
            node: the one in which `length` lies; None, and both lengths 0, if the tree knows nothing of the prompt.
        """

    def withdrew(self, arrival: object) -> None:  # noqa: B027
        """A request has left before it had published anything, and may be tried again. Not called if `arrived` returned
        None.
        """

    def grew(self, node: Node, last: int, arrival: object) -> None:  # noqa: B027
        """A new leaf stands in the tree, of a text that is being inserted up to `last`; its values come later.

        Args:
            arrival: of the request that brings the text; None if none does, as where a store does.
        """

    def published(self, node: Node, length: int) -> None:  # noqa: B027
        """A request has published a text up to `length`, which lies in this node, and the tree had all of it."""

    def saved(self, node: Node, resumed: int, arrival: object) -> None:  # noqa: B027
        """Windows or a state were saved on device, so that a request can resume at this node's end.

        Args:
            resumed: a page before that end, if a request can resume there, too; else the end.
            arrival: as of `grew`.
        """

    def locked(self, node: Node) -> None:  # noqa: B027
        """A request or a copy locks the path up to a node's end on device, and what it needs there."""

    def unlocked(self, node: Node) -> None:  # noqa: B027
        """One of these locks has ended."""


class AdmissionPolicy(EvictionPolicy):
    """An eviction policy that also says which windows and states are kept at all. Paths are always kept."""

    @abstractmethod
    def admits(self, value: Value) -> bool:
        """Whether an `insert` that brings this window or state may keep it. Asked for values on device before `touched`.

        The value knows its node, but is not in the tree yet. The page of a refused state comes back as a duplicate. If a window
        is refused, the caller keeps its pages and those of all other windows of that insert, and none of them is in
        `InsertResult.canonical`. If this method raises, the value is admitted and a failure is counted.
        """


PolicyFactory = Callable[["TreeView"], Union[EvictionPolicy, "Standard"]]
"""Makes a policy; called once a tree, with the tree as a policy sees it."""
