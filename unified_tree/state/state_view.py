"""The view that a policy has of its tree, and the cost to restore a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unified_tree.nodes.node import Node, Value
from unified_tree.policies.tree_view import TreeView
from unified_tree.terms.tier import Tier, opposite

if TYPE_CHECKING:
    from unified_tree.declare.component_layout import ComponentLayout
    from unified_tree.declare.settings import TreeSettings
    from unified_tree.state.pool import Pool
    from unified_tree.state.shared_pools import SharedPools

FLOPS_PER_RELOADED_BYTE: Final = 4e3
"""Reloading a byte is as dear as so many FLOPs: 200 TFLOP/s of prefill against 50 GB/s from host."""


class StateView(TreeView):
    """The view of one tree.

    Attributes:
        device_pools, host_pools, shared_pools: those of the tree, which come after its policy.
    """

    __slots__ = ("_layout", "device_pools", "host_pools", "shared_pools")

    def __init__(self, layout: ComponentLayout, settings: TreeSettings) -> None:
        super().__init__(layout.components, layout.page_size, settings)
        self._layout = layout
        self.device_pools: list[Pool] = []
        self.host_pools: list[Pool] = []
        self.shared_pools: tuple[SharedPools | None, SharedPools | None] = (None, None)

    @property
    def save_grid_tokens(self) -> int:
        return self._layout.save_grid_tokens

    def restore_cost(self, value: Value) -> float:
        """FLOPs to compute or reload what is lost with a value, per byte that evicting it frees.

        A copy on the other tier makes it a reload. A path's leaf costs its own tokens, so that among paths only recency
        tells. A state or a window costs the tokens back to the boundary before it, or what a rebuild costs if that is less.
        Cost: O(nodes up to that boundary), at most the setting `cost_steps`.
        """
        component = value.component
        spec = self.components[component]
        size_bytes = max(1, value.page_count * (spec.page_bytes or 1))
        copy = value.node.values(opposite(value.tier))[component]
        if copy is not None:
            return FLOPS_PER_RELOADED_BYTE
        flops_per_token = sum(c.flops_per_token for c in self.components) or 1.0
        return flops_per_token * self.tokens_lost(value) / size_bytes

    def tokens_lost(self, value: Value) -> int:
        """How many tokens have to be computed again without a value, whatever other tiers have of it: see `restore_cost`."""
        if self._layout.is_path[value.component]:
            return value.page_count * self.page_size
        tokens = value.node.end - _boundary_above(value.node, self.settings.cost_steps)
        return tokens if self._layout.rebuild_tokens is None else min(tokens, self._layout.rebuild_tokens)

    def held_pages(self, component: int, tier: Tier) -> int:
        is_owner = tier is Tier.HOST or self._layout.owner_of[component] == component
        pool = (self.host_pools if tier is Tier.HOST else self.device_pools)[component]
        return pool.used_pages + pool.ledger.in_flight_pages if is_owner else 0

    def page_blocks(self, component: int, tier: Tier) -> int:
        shared = self.shared_pools[1 if tier is Tier.HOST else 0]
        return 0 if shared is None else shared.page_blocks[component]

    def reorder(self, value: Value) -> None:
        (self.host_pools if value.tier is Tier.HOST else self.device_pools)[value.component].reorder(value)


def _boundary_above(node: Node, max_steps: int) -> int:
    """The end of the nearest resumable ancestor, 0 if there is none."""
    at = node.parent
    for _ in range(max_steps):
        if at is None or at.parent is None or at.resumable:
            break
        at = at.parent
    return at.end if at is not None else 0
