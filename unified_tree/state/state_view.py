"""What a policy may ask of its tree, answered from the tree's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.policies.tree_view import TreeView
from unified_tree.state.cost import restore_cost, tokens_lost
from unified_tree.tier import Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Value
    from unified_tree.state.tree_state import TreeState


class StateView(TreeView):
    """The view of one tree."""

    __slots__ = ("_state",)

    def __init__(self, state: TreeState) -> None:
        super().__init__(state.components, state.page_size, state.settings)
        self._state = state

    @property
    def now(self) -> int:
        return self._state.clock

    @property
    def save_grid_tokens(self) -> int:
        return self._state.save_grid_tokens

    def restore_cost(self, value: Value) -> float:
        return restore_cost(self._state, value)

    def tokens_lost(self, value: Value) -> int:
        return tokens_lost(self._state, value)

    def held_pages(self, component: int, tier: Tier) -> int:
        state = self._state
        return state.pools(tier)[component].used_pages if tier is Tier.HOST or state.owner_of[component] == component else 0

    def held_blocks(self, tier: Tier) -> int:
        shared = self._state.shared_pools[1 if tier is Tier.HOST else 0]
        return 0 if shared is None else shared.blocks_of([pool.used_pages for pool in self._state.pools(tier)])

    def page_blocks(self, component: int, tier: Tier) -> int:
        shared = self._state.shared_pools[1 if tier is Tier.HOST else 0]
        return 0 if shared is None else shared.page_blocks[component]

    def reorder(self, value: Value) -> None:
        self._state.pools(value.tier)[value.component].reorder(value)
