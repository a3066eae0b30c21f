"""Where a prompt of a namespace that shares leaves what is common (`declare.owners`).

A prompt is common as far as enough tenants have shown it, and as far as the tree has it as common: that was shown by as many
before. What its owner has cached from earlier, when less of it was common, hangs on the way there, at the end of that. So the
prompt keeps an earlier fork where it resumes further along it: sharing takes no hit from a namespace that it would have alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.declare.keys import Mark
from unified_tree.declare.owners import SHARED, marked, owned
from unified_tree.lookup.matching import match, walk
from unified_tree.nodes.children import child_at

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key
    from unified_tree.nodes.node import Node
    from unified_tree.state.tree_state import TreeState


def forked(state: TreeState, key: Key, owner: int, common: int) -> Key:
    """A whole key as the tree has it.

    Args:
        key: as the request gave it, with ids that can be marked.
        owner: its mark.
        common: so many elements, in whole pages, were shown by enough tenants.

    Changes nothing. Cost: as a match, and a match for each earlier fork of this prompt.
    """
    plain, own = bytes(key.data), owned(key.data, owner)
    root = state.roots.get((SHARED, key.bigram))
    if root is None:
        return marked(key, plain, own, Mark(key.namespace, owner, common))
    node, length = walk(state, key, root, key.length)
    best = marked(key, plain, own, Mark(key.namespace, owner, max(common, length)))
    earlier = _earlier(state, node, length, own, best.mark.fork if best.mark is not None else 0, key.width_bytes)
    if not earlier:
        return best
    reach = _reach(state, best)
    for fork in earlier:
        other = marked(key, plain, own, Mark(key.namespace, owner, fork))
        found = _reach(state, other)
        if found > reach:
            best, reach = other, found
    return best


def _earlier(state: TreeState, node: Node, length: int, own: bytes, fork: int, width: int) -> list[int]:
    """The lengths before a fork, the last first, at which the tree goes on with the owner's own page. Cost: O(nodes passed)."""
    size = state.page_size * width
    found: list[int] = []
    at: Node | None = node if length == node.end else node.parent  # an owner's nodes begin at a node's end
    while at is not None:
        begin = at.end * width
        if at.end < fork and child_at(at, own[begin : begin + size]) is not None:
            found.append(at.end)
        at = at.parent
    return found


def _reach(state: TreeState, key: Key) -> tuple[int, int]:
    """How far a key resumes, over all tiers and on device."""
    found = match(state, key, key.length - 1, touch=False)
    return found.reachable.length, found.device.length
