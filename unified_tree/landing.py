"""Pages that arrive on a tier: those of a span go to whatever nodes it crosses by now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unified_tree.node import PAGE_ID_BYTES, Node, Tier
from unified_tree.resumability import refresh

if TYPE_CHECKING:
    from unified_tree.effect import Span
    from unified_tree.state import TreeState


def land(state: TreeState, span: Span, tier: Tier, unused: dict[int, list[bytes]]) -> None:
    """Give the nodes of a span their pages, from the top down; what is there by now is not needed and goes to `unused`.

    Cost: O(nodes crossed) and one copy of the ids.
    """
    for node in reversed(list(crossed(span))):
        first, last = max(node.start, span.begin), min(node.end, span.end)
        offset = (first - span.begin) // state.page_size * PAGE_ID_BYTES
        pages = span.target[offset : offset + (last - first) // state.page_size * PAGE_ID_BYTES]
        if _place(state, node, span.component, tier, pages, first, last):
            refresh(state, node, window_changed=not state.is_path[span.component] and span.component not in state.points)
        elif tier is Tier.HOST or state.owner_of[span.component] == span.component:
            unused.setdefault(span.component, []).append(pages)


def crossed(span: Span) -> Iterator[Node]:
    """The nodes a span crosses, from the bottom up."""
    at: Node | None = span.node
    while at is not None and at.parent is not None and at.end > span.begin:
        if at.start < span.end:
            yield at
        at = at.parent


def _place(state: TreeState, node: Node, component: int, tier: Tier, pages: bytes, first: int, last: int) -> bool:
    """Place pages of the tokens [first, last) if they join what the node has; False if it has them by now."""
    value = node.values(tier)[component]
    if value is None:
        owner = node.device[state.owner_of[component]]
        is_sharer = tier is Tier.DEVICE and state.owner_of[component] != component
        if last != node.end or (is_sharer and (owner is None or not owner.pages.endswith(pages))):
            return False
        if state.is_path[component] and not (last - first == node.end - node.start and _continues(node, component, tier)):
            return False
        state.place(node, component, tier, pages)
        return True
    if last != node.end - value.page_count * state.page_size:
        return False
    state.extend(value, pages)
    return True


def _continues(node: Node, component: int, tier: Tier) -> bool:
    """Whether a path value here would have one above it on its tier."""
    parent = node.parent
    return parent is None or parent.parent is None or parent.values(tier)[component] is not None
