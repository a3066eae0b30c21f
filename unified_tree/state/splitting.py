"""Splitting a node. The lowest piece keeps the node's id, object and end; the others are new."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from unified_tree.nodes.children import attach, replace
from unified_tree.nodes.claim import Claim
from unified_tree.nodes.node import Node, Value, window_values
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from unified_tree.state.tree_state import TreeState


def split(state: TreeState, node: Node, length: int) -> Node:
    """Cut `node` at `length`, strictly inside it and at a page; returns the upper half. See `split_at`."""
    return split_at(state, node, (length,))[0]


def split_at(state: TreeState, node: Node, lengths: Sequence[int]) -> list[Node]:
    """Cut `node` at several lengths, ascending; returns the new nodes, from the top down.

    A path value is divided. A window's value (a suffix) gives the upper parts what exceeds the lower. A state stays at the end
    where it was saved. A lock stays on all parts. Cost: one copy of the edge and the page ids, and O(components) a cut.
    """
    top = node.parent
    assert top is not None and top.end < lengths[0] and lengths[-1] < node.end
    width = len(node.edge) // (node.end - top.end)
    edge, begin = node.edge, top.end
    pieces: list[Node] = []
    parent = top
    for length in lengths:
        assert length % state.page_size == 0
        piece = state.new_node(parent, edge[(parent.end - begin) * width : (length - begin) * width], length)
        piece.line = node.line
        if node.claim is not None:
            claim = piece.claim = Claim(node.claim.owner, piece)
            claim.live = 1 if node.claim.live else 0
        pieces.append(piece)
        parent = piece
    replace(top, node, pieces[0], state.page_size)
    for upper, lower in pairwise(pieces):
        attach(upper, lower, state.page_size, state.settings.max_listed_children)
    node.edge = edge[(parent.end - begin) * width :]
    node.parent = parent
    attach(parent, node, state.page_size, state.settings.max_listed_children)
    for tier in (Tier.DEVICE, Tier.HOST):
        for value in node.values(tier):
            if value is not None:
                _divide(state, value, pieces)
    if state.host_value_count:
        for part in (*pieces, node):
            for i in range(len(state.components)):
                state.note_copies(part, i)
    if node.lost is not None:
        _divide_lost(state, node, pieces)
    state.resumability.cut(pieces, node)
    return pieces


def keep_window(state: TreeState, node: Node, component: int, first: int) -> None:
    """The window of a component on device, from `first` to the node's end, is spare no more. Spare pages before it are cut off,
    and stay so.

    Cost: O(nodes of the window), and a split where a spare value begins before it.
    """
    cut_window(state, node, component, first)
    for value in window_values(node, first, component, Tier.DEVICE):
        if value.spare:
            state.set_spare(value, False)


def cut_window(state: TreeState, node: Node, component: int, first: int) -> None:
    """Cut the spare value on device that reaches into the window of a component, from `first` on, from before it.

    Cost: O(nodes of the window), and the split.
    """
    for value in window_values(node, first, component, Tier.DEVICE):
        if value.spare and value.node.end - value.page_count * state.page_size < first:
            split(state, value.node, first)


def _divide_lost(state: TreeState, node: Node, pieces: Sequence[Node]) -> None:
    """What is remembered of windows that went is divided as they would be."""
    lost = node.lost
    while lost is not None:
        left = lost.page_count
        for part in (node, *reversed(pieces)):
            own = (part.end - part.start) // state.page_size
            if part is node:
                lost.page_count = min(left, own)
            else:
                part.note_lost(lost.component, min(left, own), lost.eviction)
            left -= own
            if left <= 0 or lost.component in state.layout.points:
                break
        lost = lost.next


def _divide(state: TreeState, value: Value, pieces: Sequence[Node]) -> None:
    """Divide a node's value among the pieces above it, from the bottom up."""
    pages, end = value.pages, value.node.end
    cuts = [len(pages) - (end - piece.end) // state.page_size * PAGE_ID_BYTES for piece in pieces]
    if cuts[-1] <= 0:
        return
    value.pages = pages[cuts[-1] :]
    for i in range(len(pieces) - 1, -1, -1):
        if cuts[i] <= 0:
            return
        value = _upper_part(state, value, pieces[i], pages[max(cuts[i - 1], 0) if i else 0 : cuts[i]])


def _upper_part(state: TreeState, value: Value, upper: Node, pages: bytes) -> Value:
    """Give `upper` its share of `value`."""
    half = Value(upper, value.component, value.tier, pages, value.created, value.priority)
    half.stranded, half.copied, half.was_read = value.stranded, value.copied, value.was_read
    half.spare, half.demoted = value.spare, value.demoted
    if value.holds and not state.layout.is_path[value.component]:
        half.holds = value.holds
        for hold in value.holds:
            hold.values.append(half)
    if value.copying:
        _divide_copying(value, half)
    half.score, half.policy_state = value.score, value.policy_state
    upper.set_value(value.component, value.tier, half)
    is_path = state.layout.is_path[value.component]
    pool = state.pools(value.tier)[value.component]
    if not is_path:
        half.touched, half.hits = value.touched, value.hits
    if value.marks is not None:
        _divide_marks(value, half)
        pool.reorder(value)
    if value.locked_by is not None:
        half.locked_by = dict(value.locked_by)
        half.locks = value.locks
        for receipt in value.locked_by.values():
            receipt.add(half)
    elif value.locks:
        half.locks = 1
    if value.tier:
        state.host_value_count += 1
    if is_path:
        half.children = 1
    elif not half.locks and (value.tier or state.layout.owner_of[value.component] == value.component):
        pool.add_evictable(half)
    return half


def _divide_copying(value: Value, half: Value) -> None:
    """Each half keeps the transfers that copy some of its pages; one may copy only the front, which the other tier lacked."""
    cut, component = half.node.end, value.component
    half.copying = tuple([effect for effect in value.copying if effect.copied_from(component, half.node.start, cut) < cut])
    end = value.node.end
    value.copying = tuple([effect for effect in value.copying if effect.copied_from(component, cut, end) < end])


def _divide_marks(value: Value, half: Value) -> None:
    """Each use goes to the half it ended in."""
    assert value.marks is not None
    above = {length: mark for length, mark in value.marks.items() if length <= half.node.end}
    below = {length: mark for length, mark in value.marks.items() if length > half.node.end}
    if above:
        half.touched = max(half.touched, *(touched for touched, _ in above.values()))
        half.hits = sum(hits for _, hits in above.values())
        half.marks = above if len(above) > 1 else None
    if below:
        value.touched = max(touched for touched, _ in below.values())
        value.hits = sum(hits for _, hits in below.values())
    value.marks = below if len(below) > 1 else None
