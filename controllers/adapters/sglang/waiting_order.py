"""The order of waiting requests under `--schedule-policy dfs-weight`: depth first, the subtree with most requests first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unified_tree.terms.tier import ROOT_ID

if TYPE_CHECKING:
    from unified_tree.terms.results import Boundary
    from unified_tree.tree import UnifiedTree


def depth_first_order(tree: UnifiedTree, boundaries: Sequence[Boundary]) -> list[int]:
    """The indices of `boundaries` in depth-first order: a subtree in which more of them end comes first, and what ends in a
    node comes after its children. Equal ones keep the order in which they were met.

    Cost: O(nodes on the paths of the boundaries + n log n), whatever else is in the tree.
    """
    ending: dict[int, list[int]] = {}
    children: dict[int, dict[int, None]] = {ROOT_ID: {}}
    for index, boundary in enumerate(boundaries):
        ending.setdefault(boundary.node, []).append(index)
        node, below = tree.state.nodes.get(boundary.node), None
        while node is not None and node.parent is not None:
            known = node.id in children
            siblings = children.setdefault(node.id, {})
            if below is not None:
                siblings[below] = None
            if known:
                break
            below, node = node.id, node.parent
        else:
            children[ROOT_ID][boundary.node if below is None else below] = None
    children[ROOT_ID].pop(ROOT_ID, None)
    parents_first: list[int] = [ROOT_ID]
    for at in parents_first:  # it grows meanwhile
        parents_first.extend(children.get(at, ()))
    weights: dict[int, int] = {}
    for at in reversed(parents_first):
        weights[at] = len(ending.get(at, ())) + sum(weights[child] for child in children.get(at, ()))
    last_first: list[int] = []
    visits: list[int] = [ROOT_ID]
    while visits:
        at = visits.pop()
        last_first.append(at)
        visits.extend(sorted(children.get(at, ()), key=lambda child: -weights[child]))  # the lightest is visited next
    return [index for at in reversed(last_first) for index in ending.get(at, ())]
