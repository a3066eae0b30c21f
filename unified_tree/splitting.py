"""Cutting a node in two. The lower half keeps the node's id, object and end; the upper half is new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.node import PAGE_ID_BYTES, Node, Tier, Value
from unified_tree.resumability import boundary_of, is_resumable, mark_values, settle

if TYPE_CHECKING:
    from unified_tree.state import TreeState


def split(state: TreeState, node: Node, length: int) -> Node:
    """Cut `node` at `length`, strictly inside it and at a page; returns the upper half.

    A path value is divided, a window's value (a suffix) gives the upper half what exceeds the lower, a state stays at the
    end it was saved at. Locks hold on both halves. Cost: one copy of the edge and the page ids.
    """
    parent = node.parent
    assert parent is not None and parent.end < length < node.end and length % state.page_size == 0
    width = len(node.edge) // (node.end - parent.end)
    page = state.page_size * width
    offset = (length - parent.end) * width
    first_page = state.first_page(node)
    upper = state.new_node(parent, node.edge[:offset], length)
    node.edge = node.edge[offset:]
    parent.children[first_page] = upper
    node.parent = upper
    upper.adopt(node.edge if len(node.edge) == page else node.edge[:page], node)
    lower_pages = (node.end - length) // state.page_size
    for tier in (Tier.DEVICE, Tier.HOST):
        for value in node.values(tier):
            if value is not None and value.page_count > lower_pages:
                _divide(state, value, upper, lower_pages)
    if state.host_value_count:
        for i in range(len(state.components)):
            state.note_copies(upper, i)
            state.note_copies(node, i)
    if state.gated:
        upper.resumable = is_resumable(state, upper)
        upper.nearest_boundary = node.nearest_boundary
        if upper.resumable:
            settle(state, upper, boundary_of(state, upper))
        else:
            mark_values(state, upper)
    return upper


def _divide(state: TreeState, value: Value, upper: Node, lower_pages: int) -> None:
    """Give `upper` the part of `value` that exceeds its node's last `lower_pages` pages."""
    cut = len(value.pages) - lower_pages * PAGE_ID_BYTES
    half = Value(upper, value.component, value.tier, value.pages[:cut], value.created, value.priority)
    value.set_pages(value.pages[cut:])
    half.stranded, half.copied = value.stranded, value.copied
    if value.copying:
        _divide_copying(value, half)
    half.score = value.score
    upper.set_value(value.component, value.tier, half)
    is_path = state.is_path[value.component]
    if not is_path:
        half.touched, half.hits = value.touched, value.hits
    if value.marks is not None:
        _divide_marks(value, half)
        state.pools(value.tier)[value.component].moved(value)
    if value.holders is not None:
        half.holders = dict(value.holders)
        half.locks = value.locks
        for receipt in value.holders.values():
            receipt.hold(half)
    elif value.locks:
        half.locks = 1
    if value.tier:
        state.host_value_count += 1
    if is_path:
        half.children = 1
    if value.tier or state.owner_of[value.component] == value.component:
        pool = state.pools(value.tier)[value.component]
        if not is_path or value.tier:
            pool.enter(half)


def _divide_copying(value: Value, half: Value) -> None:
    """A copy may be of one half alone: of the front that the other tier lacked, or of all but what came later before it."""
    cut, component = half.node.end, value.component
    half.copying = tuple([effect for effect in value.copying if effect.copied_from(component, half.node.start, cut) < cut])
    end = value.node.end
    value.copying = tuple([effect for effect in value.copying if effect.copied_from(component, cut, end) < end])


def _divide_marks(value: Value, half: Value) -> None:
    """Each use goes to the half it ended in."""
    assert value.marks is not None
    above = [mark for length, mark in value.marks.items() if length <= half.node.end]
    below = {length: mark for length, mark in value.marks.items() if length > half.node.end}
    if above:
        half.touched = max(half.touched, *(touched for touched, _ in above))
        half.hits = sum(hits for _, hits in above)
        half.marks = None
    if below:
        value.touched = max(touched for touched, _ in below.values())
        value.hits = sum(hits for _, hits in below.values())
    value.marks = below if len(below) > 1 else None
