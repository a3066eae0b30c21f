"""The tree as its policy sees it: what is fixed, what is held, and what a value costs to bring back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.cost import restore_cost, tokens_lost
from unified_tree.node import Tier

if TYPE_CHECKING:
    from unified_tree.component import Component
    from unified_tree.node import Node, Value
    from unified_tree.settings import TreeSettings
    from unified_tree.state import TreeState


class TreeView:
    """What a policy may ask of its tree. A factory gets it before the tree is complete, so ask later.

    Attributes:
        components: the kinds of state, in the order of `Value.component`.
        page_size: tokens a page.
        settings: every bound.
    """

    __slots__ = ("_state", "components", "page_size", "settings")

    def __init__(self, state: TreeState, components: tuple[Component, ...], page_size: int, settings: TreeSettings) -> None:
        self._state = state
        self.components = components
        self.page_size = page_size
        self.settings = settings

    @property
    def now(self) -> int:
        """The tree's clock, in whose ticks `Value.touched` is: one for each insert, and each match that is a use."""
        return self._state.clock

    @property
    def save_grid_tokens(self) -> int:
        """The grid on which every kind can be saved."""
        return self._state.save_grid_tokens

    def restore_cost(self, value: Value) -> float:
        """What it costs to bring a value back, per byte it frees; larger is worth keeping. Units: FLOPs a byte.

        Cost: O(nodes up to the boundary before it), at most the setting `cost_steps`.
        """
        return restore_cost(self._state, value)

    def tokens_lost(self, value: Value) -> int:
        """How many tokens have to be computed again without a value, whatever other tiers have. Cost: as `restore_cost`."""
        return tokens_lost(self._state, value)

    def hit_length(self, node: Node, length: int) -> int:
        """The longest boundary of any tier at the end of a node, at most `length` and at or above a node; 0 for none, or if it
        lies further up than the setting `cost_steps`. Cost: O(nodes up to it).
        """
        found = self.boundary_of(node, length)
        return 0 if found is None else found.end

    def boundary_of(self, node: Node | None, length: int) -> Node | None:
        """The node at whose end that boundary lies; None for none. Cost: as `hit_length`."""
        for _ in range(self.settings.cost_steps):
            if node is None or node.parent is None:
                break
            if node.resumable and node.end <= length:
                return node
            node = node.parent
        return None

    def held_pages(self, component: int, tier: Tier) -> int:
        """Pages that the tree holds of a kind on a tier. Cost: O(1)."""
        state = self._state
        return state.pools(tier)[component].used_pages if tier is Tier.HOST or state.owner_of[component] == component else 0

    def held_blocks(self, tier: Tier) -> int:
        """Blocks that the tree holds of the budget that the pools of a tier share; 0 for none. Cost: O(components)."""
        shared = self._state.shared_pools[1 if tier is Tier.HOST else 0]
        return 0 if shared is None else shared.blocks_of([pool.used_pages for pool in self._state.pools(tier)])

    def page_blocks(self, component: int, tier: Tier) -> int:
        """Blocks that a page takes of the budget that the pools of a tier share; 0 where each pool has its own pages."""
        shared = self._state.shared_pools[1 if tier is Tier.HOST else 0]
        return 0 if shared is None else shared.page_blocks[component]

    def reorder(self, value: Value) -> None:
        """Ask for a value's rank again, if it is evictable now. Cost: O(log n)."""
        self._state.pools(value.tier)[value.component].reorder(value)
