"""An eviction policy: LRU-2 (O'Neil and others, 1993), which evicts what was used twice the longest time ago.

A package offers it as `lru2 = "lru2_policy:Lru2"` in the entry-point group `unified_tree.policies`; without a package it is
`policy="lru2_policy:Lru2"`, for a tree, a PrefixCache and `unified-tree replay --policy`, run in this folder, alike.
"""

from __future__ import annotations

from math import inf

from unified_tree import EvictionPolicy, TreeView, Value


class Lru2(EvictionPolicy):
    """Ranks by the use before the last; what was used once goes first. One instance serves one tree."""

    def __init__(self, view: TreeView) -> None:
        self.view = view  # the tree as a policy sees it; this one does without

    def touched(self, value: Value) -> None:
        """Keep the last two uses, at the value."""
        _, last = uses(value)
        value.policy_state = (last, float(value.touched))

    def rank(self, value: Value) -> tuple[float, float]:
        """The smallest rank goes first."""
        return uses(value)


def uses(value: Value) -> tuple[float, float]:
    """The use before the last, and the last."""
    kept = value.policy_state
    return kept if isinstance(kept, tuple) else (-inf, -inf)
