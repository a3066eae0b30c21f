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
    weights: dict[int, int] = {}
    visits: list[tuple[int, bool]] = [(ROOT_ID, False)]
    parents_first = []
    while visits:
        at, _ = visits.pop()
        parents_first.append(at)
        visits.extend((child, False) for child in children.get(at, ()))
    for at in reversed(parents_first):
        weights[at] = len(ending.get(at, ())) + sum(weights[child] for child in children.get(at, ()))
    order: list[int] = []
    visits = [(ROOT_ID, False)]
    while visits:
        at, is_done = visits.pop()
        if is_done:
            order.extend(ending.get(at, ()))
            continue
        visits.append((at, True))
        heaviest_last = sorted(children.get(at, ()), key=lambda child: -weights[child])
        visits.extend((child, False) for child in reversed(heaviest_last))
    return order
