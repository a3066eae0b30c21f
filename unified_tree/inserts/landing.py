"""Landing: place the pages of a span on the nodes that it crosses now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.nodes.node import Node
from unified_tree.tier import HOST, PAGE_ID_BYTES

if TYPE_CHECKING:
    from unified_tree.nodes.effect import Span
    from unified_tree.state.tree_state import TreeState
    from unified_tree.tier import Tier


def land(state: TreeState, span: Span, tier: Tier) -> list[bytes]:
    """Place a span's pages on its nodes, from the top down. Returns the pages of values that exist by now, which are unused.

    Cost: O(nodes crossed) and one copy of the ids.
    """
    unused: list[bytes] = []
    for node in crossed(span):
        first, last = max(node.start, span.begin), min(node.end, span.end)
        pages = span.target
        if first > span.begin or last < span.end:
            offset = (first - span.begin) // state.page_size * PAGE_ID_BYTES
            pages = pages[offset : offset + (last - first) // state.page_size * PAGE_ID_BYTES]
        taken = _place(state, node, span.component, tier, pages, first)
        if taken:
            state.resumability.update(node)
        if taken < len(pages) and (tier is HOST or state.owner_of[span.component] == span.component):
            unused.append(pages[taken:])
    return unused


def crossed(span: Span) -> list[Node]:
    """The nodes a span crosses, from the top down."""
    node = span.node
    parent = node.parent
    if parent is not None and parent.end <= span.begin < node.end and parent.end < span.end:
        return [node]
    found: list[Node] = []
    at: Node | None = node
    while at is not None and at.parent is not None and at.end > span.begin:
        if at.start < span.end:
            found.append(at)
        at = at.parent
    found.reverse()
    return found


def _place(state: TreeState, node: Node, component: int, tier: Tier, pages: bytes, first: int) -> int:
    """Place pages of the tokens from `first` on before what the node has by now; how many of their bytes were needed."""
    value = node.values(tier)[component]
    begin = node.end if value is None else node.end - value.page_count * state.page_size
    needed = pages
    count_bytes = max(0, begin - first) // state.page_size * PAGE_ID_BYTES
    if count_bytes < len(pages):
        needed = pages[:count_bytes]
    if not needed or first + len(needed) // PAGE_ID_BYTES * state.page_size != begin:
        return 0
    if tier is not HOST and state.owner_of[component] != component and not _owns(state, node, component, needed, begin):
        return 0
    if value is not None:
        state.extend(value, needed)
        return len(needed)
    if state.is_path[component] and not (first == node.start and _continues(node, component, tier)):
        return 0
    state.place(node, component, tier, needed)
    return len(needed)


def _owns(state: TreeState, node: Node, component: int, pages: bytes, end: int) -> bool:
    """Whether a sharer's pages of the tokens before `end` are its owner's."""
    owner = node.device[state.owner_of[component]]
    return owner is not None and owner.pages[: len(owner.pages) - (node.end - end) // state.page_size * PAGE_ID_BYTES].endswith(
        pages
    )


def _continues(node: Node, component: int, tier: Tier) -> bool:
    """Whether the parent has this path on the same tier."""
    parent = node.parent
    return parent is None or parent.parent is None or parent.values(tier)[component] is not None
