"""The reading half of an insert: walk the key, check everything given, find out what is news.

Raises InsertError or PageError with nothing changed, so that the half that writes cannot fail.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.errors import InsertError, PageError
from unified_tree.keys import Key
from unified_tree.matching import path_reach, walk
from unified_tree.node import Node, Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.receipt import Boundary
    from unified_tree.state import TreeState

Pages = Mapping[str, "NDArray[np.int64]"]
States = Mapping[str, Mapping[Any, Any]]  # unchecked: compiled code would refuse what are no ints in its own words
MOST_PAGE_ID = (1 << 63) - 1


@dataclass(slots=True)
class Plan:
    """A checked insert: what is given, and where the tree ends.

    Attributes:
        end: the key's length in whole pages, in tokens.
        node, matched: the deepest node on the key's path and how far it matches.
        reach: how far the required paths are on device.
        given: tail pages by component index.
        states: state pages by component index and length.
        absent: sharers whose state the given pages do not hold.
    """

    key: Key
    end: int
    node: Node
    matched: int
    reach: int
    given: dict[int, NDArray[np.int64]]
    states: dict[int, dict[int, int]]
    absent: set[int]
    priority: int


def plan_insert(
    state: TreeState,
    key: Key,
    pages: Pages,
    states: States,
    after: Boundary | None,
    without: Collection[str],
    priority: int,
) -> Plan | None:
    """Walk and check; raises InsertError or PageError with nothing changed. None for a key without a whole page."""
    end = key.length // state.page_size * state.page_size
    given = _given_pages(state, pages, end)
    by_component = _given_states(state, states, end)
    absent = {_index(state, name) for name in without}
    for i in absent.intersection(state.required_paths):
        raise InsertError(f"{state.components[i].name}: is a required path, so no pages can go in without it")
    if end == 0:
        return None
    root: Node | None = state.roots.get((key.namespace, key.bigram))
    node = root
    matched = reach = 0
    if root is not None:
        node, matched = walk(state, key, _start(state, key, root, after, end), end)
        reach = path_reach(state, node, matched, device_only=True)[1] if state.host_value_count else matched
    for i in state.owned_paths[Tier.DEVICE]:
        component = state.components[i]
        begin = end - given[i].size * state.page_size if i in given else end
        if component.required and begin > reach:
            raise InsertError(
                f"{component.name}: the pages given begin at token {begin}, but the tree has the path on device up to {reach}"
            )
    for i, ids in given.items():
        _check_pages(state, i, ids, end, node, matched)
    for i, by_length in by_component.items():
        _check_states(state, node, matched, i, by_length)
    if node is None:
        node = state.root_of((key.namespace, key.bigram))
    return Plan(key, end, node, matched, reach, given, by_component, absent, priority)


def _start(state: TreeState, key: Key, root: Node, after: Boundary | None, end: int) -> Node:
    """Where to begin walking: the node at the end of `after` if this key does lead there, else the root.

    Comparing the edges upwards spares the look-ups of a walk down, which hash a page each.
    """
    node = state.nodes.get(after.node) if after is not None and after.length <= end else None
    if node is None or after is None:
        return root
    while node.end > after.length and node.parent is not None:
        node = node.parent
    data, width = key.data, key.width_bytes
    at = node
    while (parent := at.parent) is not None:
        if not data.startswith(at.edge, parent.end * width):
            return root
        at = parent
    return node if at is root else root


def _index(state: TreeState, name: str) -> int:
    if name not in state.index:
        raise InsertError(f"there is no component {name!r}; there are {', '.join(state.index)}")
    return state.index[name]


def _given_pages(state: TreeState, pages: Pages, end: int) -> dict[int, NDArray[np.int64]]:
    given = {}
    for name, ids in pages.items():
        i = _index(state, name)
        if state.owner_of[i] != i:
            raise InsertError(f"{name}: lives in the pages of {state.components[i].shares!r}; give those")
        if i in state.points:
            raise InsertError(f"{name}: a state is given by its length, in `states`")
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InsertError(
                f"{name}: pages must be a one-dimensional integer array, not {array.dtype} of shape {array.shape}"
            )
        if array.size * state.page_size > end:
            raise InsertError(f"{name}: {array.size} pages given for a key of {end // state.page_size} whole pages")
        given[i] = array.astype(np.int64, copy=False)
    return given


def _given_states(state: TreeState, states: States, end: int) -> dict[int, dict[int, int]]:
    given: dict[int, dict[int, int]] = {}
    for name, by_length in states.items():
        i = _index(state, name)
        if i not in state.points or state.owner_of[i] != i:
            raise InsertError(f"{name}: is not a component with state pages of its own")
        checked = {}
        for length, page in by_length.items():
            if not (_is_integer(length) and _is_integer(page)):
                raise InsertError(f"{name}: a state is given as {{length: page}} in integers, not {{{length!r}: {page!r}}}")
            if not 0 < length <= end or length % state.page_size:
                raise InsertError(
                    f"{name}: a state at {length} is not at the end of one of the key's {end // state.page_size} pages"
                )
            if page > MOST_PAGE_ID:
                raise PageError(f"{name}: page ids must fit in 63 bits, got {page}")
            checked[int(length)] = int(page)
        given[i] = dict(sorted(checked.items()))
    return given


def _is_integer(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _check_pages(state: TreeState, i: int, ids: NDArray[np.int64], end: int, node: Node | None, matched: int) -> None:
    """Pages the tree keeps already at the same place are no news; all others must not be the tree's."""
    ledger = state.device_pools[i].ledger
    begin = end - ids.size * state.page_size
    if node is None or begin >= matched:
        ledger.check(ids)
        return
    known = known_pages(node, matched, i, begin, state.page_size)
    news = np.ones(ids.size, np.bool_)
    overlap = ids[: known.size]
    news[: known.size] = overlap != known
    ledger.check(ids[news])


def known_pages(node: Node, matched: int, component: int, begin: int, page_size: int) -> NDArray[np.int64]:
    """The tree's device pages of [begin, matched), -1 where it has none."""
    known = np.full((matched - begin) // page_size, -1, np.int64)
    at: Node | None = node
    while at is not None and at.parent is not None and at.end > begin:
        value = at.device[component]
        if value is not None:
            ids = np.frombuffer(value.pages, np.int64)
            first = (at.end - begin) // page_size - ids.size
            last = min(first + ids.size, known.size)
            if last > max(first, 0):
                known[max(first, 0) : last] = ids[max(-first, 0) : last - first]
        at = at.parent
    return known


def _check_states(state: TreeState, node: Node | None, matched: int, i: int, by_length: dict[int, int]) -> None:
    """State pages the tree keeps already at the same place are no news; all others must not be the tree's."""
    news = [page for length, page in by_length.items() if length > matched or page != _state_at(node, i, length)]
    state.device_pools[i].ledger.check(np.asarray(news, np.int64))


def _state_at(node: Node | None, i: int, length: int) -> int | None:
    """The state page kept at a length that lies on the path to `node`."""
    while node is not None and node.parent is not None and node.parent.end >= length:
        node = node.parent
    value = node.device[i] if node is not None and node.end == length else None
    return int.from_bytes(value.pages, "little") if value is not None else None
