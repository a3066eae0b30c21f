"""The tree as its policy sees it: what is fixed, what is held, and what a value costs to bring back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.cost import restore_cost
from unified_tree.node import Tier

if TYPE_CHECKING:
    from unified_tree.component import Component
    from unified_tree.node import Value
    from unified_tree.settings import TreeSettings
    from unified_tree.state import TreeState


class TreeView:
    """What a policy may ask of its tree. A factory gets it before the tree is complete, so ask later.

    Attributes:
        components: the kinds of state, in the order of `Value.component`.
        page_size: tokens a page.
        settings: every bound.
    """

    __slots__ = ("components", "page_size", "settings", "state")

    def __init__(self, state: TreeState, components: tuple[Component, ...], page_size: int, settings: TreeSettings) -> None:
        self.state = state
        self.components = components
        self.page_size = page_size
        self.settings = settings

    @property
    def now(self) -> int:
        """The tree's clock, in whose ticks `Value.touched` is: one for each insert, and each match that is a use."""
        return self.state.clock

    def restore_cost(self, value: Value) -> float:
        """What it costs to bring a value back, per byte it frees; larger is worth keeping. Units: FLOPs a byte.

        Cost: O(nodes up to the boundary before it), at most the setting `cost_steps`.
        """
        return restore_cost(self.state, value)

    def used_pages(self, component: int, tier: Tier) -> int:
        """Pages of a component that the tree holds on a tier."""
        return self.state.pools(tier)[component].used_pages

    def page_count(self, component: int, tier: Tier) -> int | None:
        """Pages that a component's pool has on a tier; None if that is not known, or the pool shares a budget."""
        return self.state.pools(tier)[component].ledger.page_count

    def page_blocks(self, component: int, tier: Tier) -> int:
        """Blocks that a page takes of the budget that the pools of a tier share; 0 where each pool has its own pages."""
        shared = self.state.shared_pools[1 if tier is Tier.HOST else 0]
        return 0 if shared is None else shared.page_blocks[component]

    def reorder(self, value: Value) -> None:
        """Ask for a value's rank again, if it is evictable now. Cost: O(log n)."""
        self.state.pools(value.tier)[value.component].reorder(value)
