"""Grafting: put host pages into the tree that did not come from the device, such as pages fetched from a store.

The counterpart of an insert on the host tier. Nodes are split or added so that one ends where the pages end, and the pages are
placed on all nodes they cross. All checks come first, so a refused graft changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from unified_tree.errors import InsertError
from unified_tree.inserts.landing import land
from unified_tree.lookup.matching import node_above, walk
from unified_tree.nodes.effect import Span
from unified_tree.nodes.node import Node
from unified_tree.nodes.page_ids import page_ids
from unified_tree.results import NOWHERE, Boundary
from unified_tree.state.splitting import split
from unified_tree.tier import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.keys import Key
    from unified_tree.state.tree_state import TreeState


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
    while node.parent is not None and any(node.host[i] is None for i in state.required_paths):
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
    for i in sorted(given, key=lambda i: not state.is_path[i]):
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
    key.require_tokens(after.length)  # what is in the tree never has a negative one
    given: dict[int, NDArray[np.int64]] = {}
    for name, ids in pages.items():
        if name not in state.index:
            raise InsertError(f"there is no component {name!r}; there are {', '.join(state.index)}")
        i = state.index[name]
        given[i] = page_ids(name, ids)
        max_pages = state.components[i].coverage.pages_needed(end, state.page_size)
        if not 0 < given[i].size <= max_pages:
            raise InsertError(f"{name}: 1 … {max_pages} pages can be grafted at {end} tokens, not {given[i].size}")
        state.host_pools[i].ledger.check(given[i])
    reach = host_path_end(state, key, end, after).length
    for i in state.required_paths:
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
    return state.grow(node, bytes(key.data[matched * key.width_bytes : end * key.width_bytes]), end, end)
