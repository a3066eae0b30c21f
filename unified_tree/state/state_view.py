"""The view that a policy has of its tree, and the cost to restore a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.nodes.node import Node, Value
from unified_tree.policies.tree_view import TreeView
from unified_tree.terms.tier import Tier, opposite

if TYPE_CHECKING:
    from unified_tree.state.tree_state import TreeState


class StateView(TreeView):
    """The view of one tree."""

    __slots__ = ("_state",)

    def __init__(self, state: TreeState) -> None:
        super().__init__(state.components, state.page_size, state.settings)
        self._state = state

    @property
    def save_grid_tokens(self) -> int:
        return self._state.layout.save_grid_tokens

    def restore_cost(self, value: Value) -> float:
        return restore_cost(self._state, value)

    def tokens_lost(self, value: Value) -> int:
        return tokens_lost(self._state, value)

    def held_pages(self, component: int, tier: Tier) -> int:
        state = self._state
        is_owner = tier is Tier.HOST or state.layout.owner_of[component] == component
        pool = (state.host_pools if tier is Tier.HOST else state.device_pools)[component]
        return pool.used_pages + pool.ledger.in_flight_pages if is_owner else 0

    def page_blocks(self, component: int, tier: Tier) -> int:
        shared = self._state.shared_pools[1 if tier is Tier.HOST else 0]
        return 0 if shared is None else shared.page_blocks[component]

    def reorder(self, value: Value) -> None:
        self._state.pools(value.tier)[value.component].reorder(value)


FLOPS_PER_RELOADED_BYTE = 4e3
"""Reloading a byte is as dear as so many FLOPs: 200 TFLOP/s of prefill against 50 GB/s from host."""


def restore_cost(state: TreeState, value: Value) -> float:
    """FLOPs to compute or reload what is lost with `value`, per byte that evicting it frees.

    A copy on the other tier makes it a reload. A path's leaf costs its own tokens, so that among paths only recency
    tells. A state or a window costs the tokens back to the boundary before it, or what a rebuild costs if that is less.
    Cost: O(nodes up to that boundary), at most the setting `cost_steps`.
    """
    component = value.component
    spec = state.components[component]
    size_bytes = max(1, value.page_count * (spec.page_bytes or 1))
    copy = value.node.values(opposite(value.tier))[component]
    if copy is not None:
        return FLOPS_PER_RELOADED_BYTE
    flops_per_token = sum(c.flops_per_token for c in state.components) or 1.0
    return flops_per_token * tokens_lost(state, value) / size_bytes


def tokens_lost(state: TreeState, value: Value) -> int:
    """How many tokens have to be computed again without a value, whatever other tiers have of it: see `restore_cost`."""
    if state.layout.is_path[value.component]:
        return value.page_count * state.page_size
    tokens = value.node.end - _boundary_above(value.node, state.settings.cost_steps)
    return tokens if state.layout.rebuild_tokens is None else min(tokens, state.layout.rebuild_tokens)


def _boundary_above(node: Node, max_steps: int) -> int:
    """The end of the nearest resumable ancestor, 0 if there is none."""
    at = node.parent
    for _ in range(max_steps):
        if at is None or at.parent is None or at.resumable:
            break
        at = at.parent
    return at.end if at is not None else 0
