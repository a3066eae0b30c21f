"""Grafting: put host pages into the tree that did not come from the device, such as pages fetched from a store.

The counterpart of an insert on the host tier. Nodes are split or added so that one ends where the pages end, and the pages are
placed on all nodes they cross. All checks come first, so a refused graft changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unified_tree.inputs.printable import repr_of
from unified_tree.inserts.insert_plan import page_ids
from unified_tree.inserts.inserting import grow
from unified_tree.lookup.matching import node_above, walk
from unified_tree.nodes.effect import Span
from unified_tree.nodes.node import Node
from unified_tree.state.splitting import split
from unified_tree.terms.errors import InsertError
from unified_tree.terms.results import NOWHERE, Boundary
from unified_tree.terms.tier import HOST, PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.keys import Key
    from unified_tree.nodes.effect import Span
    from unified_tree.state.tree_state import TreeState
    from unified_tree.terms.tier import Tier


class GraftResult(NamedTuple):
    """What became of a graft. The caller owns the pages in `unused` and frees them.

    Attributes:
        boundary: where the key's whole pages end.
        unused: given pages that the tree did not need, by component, int64.
    """

    boundary: Boundary
    unused: dict[str, NDArray[np.int64]]


def host_path_end(state: TreeState, key: Key, limit: int, after: Boundary) -> Boundary:
    """See Transfers.host_path_end."""
    root = state.roots.get((key.namespace, key.bigram))
    if root is None:
        return NOWHERE
    node, length = walk(state, key, node_above(state, root, after, limit), limit)
    while node.parent is not None and any(node.host[i] is None for i in state.layout.required_paths):
        node = node.parent
        length = node.end
    return Boundary(node.id, length)


def graft(state: TreeState, key: Key, pages: Mapping[str, NDArray[np.int64]], after: Boundary) -> GraftResult:
    """See Transfers.graft."""
    end = key.length // state.page_size * state.page_size
    given = _checked(state, key, pages, end, after)
    state.tick()
    node = _node_ending_at(state, key, end, after)
    unused: dict[int, list[bytes]] = {}
    for i in sorted(given, key=lambda i: not state.layout.is_path[i]):
        ids = given[i]
        left = land(state, Span(i, node, end - ids.size * state.page_size, end, b"", ids.tobytes()), Tier.HOST)
        if left:
            unused[i] = left
    state.resumability.update(node)
    state.resumability.settle_share()
    return GraftResult(Boundary(node.id, end), state.by_name(unused))


def _checked(
    state: TreeState, key: Key, pages: Mapping[str, NDArray[np.int64]], end: int, after: Boundary
) -> dict[int, NDArray[np.int64]]:
    """The pages by component index. Raises InsertError or PageError."""
    if end == 0:
        raise InsertError(f"{key} has no whole page to graft")
    if not isinstance(pages, Mapping):
        raise InsertError(f"pages must be a mapping from components to page ids, not {repr_of(pages)}")
    key.require_tokens(after.length)  # what is in the tree never has a negative one
    given: dict[int, NDArray[np.int64]] = {}
    for name, ids in pages.items():
        if name not in state.layout.index:
            raise InsertError(f"there is no component {repr_of(name)}; there are {', '.join(state.layout.index)}")
        i = state.layout.index[name]
        checked = page_ids(name, ids)
        max_pages = state.components[i].coverage.pages_needed(end, state.page_size)
        if checked.size == max_pages == 0:  # a window that needs nothing at this length
            continue
        given[i] = checked
        if not 0 < checked.size <= max_pages:
            raise InsertError(f"{name}: 1 … {max_pages} pages can be grafted at {end} tokens, not {given[i].size}")
        state.host_pools[i].ledger.check(given[i])
    reach = host_path_end(state, key, end, after).length
    for i in state.layout.required_paths:
        begin = end - (given[i].size if i in given else 0) * state.page_size
        if begin > reach:
            raise InsertError(
                f"{state.components[i].name}: the pages given begin at token {begin}, but the host has the path up to {reach}"
            )
    return given


def _node_ending_at(state: TreeState, key: Key, end: int, after: Boundary) -> Node:
    """The node that ends where the key's whole pages end, cut or added."""
    root = state.root_of((key.namespace, key.bigram))
    node, matched = walk(state, key, node_above(state, root, after, end), end)
    if matched < node.end:
        node = split(state, node, matched)
    if matched == end:
        return node
    if key.mark is not None and matched < key.mark.fork < end:  # a node has one owner
        fork = key.mark.fork
        node = grow(state, node, bytes(key.data[matched * key.width_bytes : fork * key.width_bytes]), fork, end)
        matched = fork
    return grow(state, node, bytes(key.data[matched * key.width_bytes : end * key.width_bytes]), end, end)


def land(state: TreeState, span: Span, tier: Tier) -> list[bytes]:
    """Place a span's pages on its nodes, from the top down. Returns the pages of values that exist by now, which are unused.

    Cost: O(nodes crossed) and one copy of the ids.
    """
    unused: list[bytes] = []
    is_new = False
    for node in crossed(span):
        first, last = max(node.start, span.begin), min(node.end, span.end)
        pages = span.target
        if first > span.begin or last < span.end:
            offset = (first - span.begin) // state.page_size * PAGE_ID_BYTES
            pages = pages[offset : offset + (last - first) // state.page_size * PAGE_ID_BYTES]
        taken = _place(state, node, span.component, tier, pages, first)
        if taken:
            is_new = True
            state.resumability.update(node)
        if taken < len(pages) and (tier is HOST or state.layout.owner_of[span.component] == span.component):
            unused.append(pages[taken:])
    layout, i = state.layout, span.component
    if is_new and state.listener is not None and tier is not HOST and not layout.is_path[i] and layout.owner_of[i] == i:
        state.listener.saved(span.node, span.node.end, state.arrival)
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
    if tier is not HOST and state.layout.owner_of[component] != component and not _owns(state, node, component, needed, begin):
        return 0
    if value is not None:
        state.extend(value, needed)
        return len(needed)
    if state.layout.is_path[component] and not (first == node.start and _continues(node, component, tier)):
        return 0
    state.place(node, component, tier, needed)
    return len(needed)


def _owns(state: TreeState, node: Node, component: int, pages: bytes, end: int) -> bool:
    """Whether a sharer's pages of the tokens before `end` are its owner's."""
    owner = node.device[state.layout.owner_of[component]]
    return owner is not None and owner.pages[: len(owner.pages) - (node.end - end) // state.page_size * PAGE_ID_BYTES].endswith(
        pages
    )


def _continues(node: Node, component: int, tier: Tier) -> bool:
    """Whether the parent has this path on the same tier."""
    parent = node.parent
    return parent is None or parent.parent is None or parent.values(tier)[component] is not None
