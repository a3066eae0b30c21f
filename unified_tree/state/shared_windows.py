"""Required windows that share the pages of longer ones, and which pages an insert must leave to its caller because of them.

A load copies of each window only what its boundary needs. So older pages of a long window may hold no state of the short window
that shares them. A request that computed both must not get the tree's pages in exchange for its own: it would resume from bytes
that were never written. If the tree's pages are unlocked, the insert replaces them; otherwise it takes no windows at all.

The alternative, to load and lock the short window wherever the long one is, would move bytes that no boundary needs.
Cost: O(nodes in the short window), and nothing for compositions without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.terms.tier import PAGE_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.declare.component_layout import SharedWindow
    from unified_tree.nodes.node import Node
    from unified_tree.state.tree_state import TreeState


def would_lose_state(
    state: TreeState, node: Node, matched: int, end: int, given: Mapping[int, NDArray[np.int64]], absent: set[int]
) -> bool:
    """Whether keeping the tree's window pages instead of the given ones loses what a required sharer has in the given ones.

    Args:
        node, matched: where the tree ends on the key, and how far it matches.
        end: the key's length in whole pages, in tokens.
        given: tail pages by component index.
        absent: sharers whose state the given pages do not hold.
    """
    size = state.page_size
    for shared in state.layout.shared_windows:
        if shared.owner not in given or shared.sharer in absent:
            continue
        ids = given[shared.owner]
        ids = ids[max(0, ids.size - shared.owner_window.pages(end, size)) :]
        begin = max(shared.window.start(end) // size * size, end - ids.size * size)
        at: Node | None = node
        while at is not None and at.parent is not None and at.end > begin:
            if _loses(state, at, matched, ids[: ids.size - (end - min(at.end, matched)) // size], begin, shared, absent):
                return True
            at = at.parent
    return False


def _loses(
    state: TreeState,
    node: Node,
    matched: int,
    ids: NDArray[np.int64],
    begin: int,
    shared: SharedWindow,
    absent: set[int],
) -> bool:
    """As `would_lose_state`, for one node and the given pages up to its end, or to where the key leaves it."""
    kept, valid = node.device[shared.owner], node.device[shared.sharer]
    if kept is None:
        return False
    size = state.page_size
    end = min(node.end, matched)  # an insert of windows cuts the node here
    beyond = (node.end - end) // size
    kept_count = kept.page_count - beyond
    valid_count = valid.page_count - beyond if valid is not None and valid.page_count > beyond else 0
    needed = min(kept_count, (end - max(node.start, begin)) // size)
    if needed <= valid_count:
        return False
    offered = min(ids.size, (end - node.start) // size)
    if not (kept.locks or valid_count or absent) and offered >= kept_count:
        return False  # the given pages will take their place
    there = kept.pages[(kept_count - needed) * PAGE_ID_BYTES : (kept_count - valid_count) * PAGE_ID_BYTES]
    return there != ids[ids.size - needed : ids.size - valid_count].tobytes()
