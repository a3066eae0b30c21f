"""The reading half of an insert: walk the key, check all arguments, and find what the tree lacks.

It raises InsertError or PageError with nothing changed, so that the writing half cannot fail. The pages given are marked as the
tree's in the same pass that checks them; the writing half releases those that it does not keep.

Where required windows share the pages of longer ones, an insert must leave some pages to its caller. A load copies of each
window only what its boundary needs. So older pages of a long window may hold no state of the short window that shares them. A
request that computed both must not get the tree's pages in exchange for its own: it would resume from bytes that were never
written. If the tree's pages are unlocked, the insert replaces them; otherwise it takes no windows at all.

The alternative, to load and lock the short window wherever the long one is, would move bytes that no boundary needs.
Cost: O(nodes in the short window), and nothing for compositions without one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.declare.keys import Key
from unified_tree.inputs.arguments import INT64, any_negative
from unified_tree.inputs.printable import repr_of
from unified_tree.lookup.matching import path_reach, walk
from unified_tree.native.chosen import agreement
from unified_tree.nodes.node import Node
from unified_tree.terms.errors import InsertError, PageError
from unified_tree.terms.tier import PAGE_ID_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.declare.component_layout import SharedWindow
    from unified_tree.state.tree_state import TreeState
    from unified_tree.terms.results import Boundary


Pages = Mapping[str, "NDArray[np.int64]"]
States = Mapping[str, Mapping[Any, Any]]  # unchecked: compiled code would refuse what are no ints in its own words
MAX_PAGE_ID = (1 << 63) - 1


class Plan:
    """A checked insert: what is given, and where the tree ends.

    Attributes:
        end: the key's length in whole pages, in tokens.
        node, matched: the deepest node on the key's path and how far it matches.
        given: tail pages by component index; without windows where the tree's pages would lose a sharer's state.
        states: state pages by component index and length, ascending.
        known: components some of whose given pages are already the tree's, at the same position.
        taken: components of which all given pages were marked as the tree's; none of the known ones.
        absent: sharers whose state the given pages do not hold.
        resumed: where an exact repeat of the key resumes: a page before the end, if that was asked for.
        kept_from: of windows, by component index, the first token whose page is kept for a boundary.
        keeps_spare: whether windows before it are kept as spare ones; `ends_spare`: whether all are.
    """

    __slots__ = (
        "absent",
        "end",
        "ends_spare",
        "given",
        "keeps_spare",
        "kept_from",
        "key",
        "known",
        "matched",
        "node",
        "priority",
        "resumed",
        "states",
        "taken",
    )

    def __init__(
        self,
        key: Key,
        end: int,
        node: Node,
        matched: int,
        given: dict[int, NDArray[np.int64]],
        states: dict[int, dict[int, int]],
        known: set[int],
        taken: set[int],
        absent: set[int],
        priority: int,
        resumed: int,
        kept_from: dict[int, int],
        *,
        keeps_spare: bool,
        ends_spare: bool,
    ) -> None:
        self.key = key
        self.end = end
        self.node = node
        self.matched = matched
        self.given = given
        self.states = states
        self.known = known
        self.taken = taken
        self.absent = absent
        self.priority = priority
        self.resumed = resumed
        self.kept_from = kept_from
        self.keeps_spare = keeps_spare
        self.ends_spare = ends_spare


def plan_insert(
    state: TreeState,
    key: Key,
    pages: Pages,
    states: States,
    after: Boundary | None,
    without: Collection[str],
    priority: int,
    *,
    repeatable: bool = False,
    keeps_spare: bool = False,
    ends_spare: bool = False,
) -> Plan | None:
    """Walk and check; raises InsertError or PageError with nothing changed. None for a key without a whole page.

    Args:
        repeatable, keeps_spare, ends_spare: see UnifiedTree.insert.
    """
    size: int = state.page_size
    length: int = key.length
    end = length // size * size
    given = {_paged(state, name): _checked_ids(name, page_ids(name, ids), end // size) for name, ids in pages.items()}
    by_component = {_stateful(state, name): _page_by_length(state, name, by_length, end) for name, by_length in states.items()}
    absent = _absent(state, without)
    if end == 0:
        return None
    root: Node | None = state.roots.get((key.namespace, key.bigram))
    node = root
    matched = reach = 0
    if root is not None or key.begin:
        node, matched = walk(state, key, _start(state, key, root, after, end), end)
        reach = path_reach(state, node, matched, device_only=True)[1] if state.host_value_count else matched
    if matched < end and not key.is_checked:
        key.require_tokens(matched)
    for i in state.layout.required_owned_paths:
        count = len(given[i]) if i in given else 0
        if end - count * size > reach:
            raise InsertError(
                f"{state.components[i].name}: the pages given begin at token {end - count * size}, "
                f"but the tree has the path on device up to {reach}"
            )
    known = {i for i, by_length in by_component.items() if _check_states(state, node, matched, i, by_length)}
    taken = _take_pages(state, given, end, node, matched)
    known.update([i for i in given if i not in taken])
    if node is None:
        node = state.root_of((key.namespace, key.bigram))
    elif state.layout.shared_windows and would_lose_state(state, node, matched, end, given, absent):
        for i, ids in given.items():
            if i in taken and not state.layout.is_path[i]:
                state.device_pools[i].ledger.release(ids)
                taken.discard(i)
        given = {i: ids for i, ids in given.items() if state.layout.is_path[i]}
    resumed = end - size if repeatable else end
    kept_from = {i: window.start(resumed) // size * size for i, window in state.layout.on_device.windows if i in given}
    return Plan(
        key,
        end,
        node,
        matched,
        given,
        by_component,
        known,
        taken,
        absent,
        priority,
        resumed,
        kept_from,
        keeps_spare=keeps_spare and not any(state.layout.sharers_of[i] for i in kept_from),
        ends_spare=ends_spare,
    )


def _start(state: TreeState, key: Key, root: Node | None, after: Boundary | None, end: int) -> Node:
    """Where to begin walking: the node at the end of `after` if this key does lead there, else the root.

    Comparing edges upwards avoids a hash look-up at every node of a walk down. What a tail of a key leads to is not compared.
    """
    node = state.nodes.get(after.node) if after is not None and after.length <= end else None
    if key.begin:
        if node is None or after is None or node.root is not root or not key.begin <= node.end == after.length:
            raise InsertError(
                f"a tail of a key from element {key.begin} on goes on after a boundary there or behind that is locked, not "
                f"after {after}"
            )
        return node
    assert root is not None
    if node is None or after is None:
        return root
    while node.end > after.length and node.parent is not None:
        node = node.parent
    data, width = key.data, key.width_bytes
    at = node
    while (parent := at.parent) is not None:
        if agreement(data, at.edge, parent.end * width, len(data), len(at.edge)) == 0:
            return root
        at = parent
    return node if at is root else root


def _index(state: TreeState, name: Any) -> int:
    i = state.layout.index.get(name) if isinstance(name, str) else None
    if i is None:
        raise InsertError(f"there is no component {repr_of(name)}; there are {', '.join(state.layout.index)}")
    return i


def _paged(state: TreeState, name: str) -> int:
    """The index of a component whose pages can be given."""
    i = _index(state, name)
    if state.layout.owner_of[i] != i:
        raise InsertError(f"{name}: lives in the pages of {state.components[i].shares!r}; give those")
    if i in state.layout.points:
        raise InsertError(f"{name}: a state is given by its length, in `states`")
    return i


def page_ids(name: str, given: Any) -> NDArray[np.int64]:
    """The ids given for a component's pages as an int64 array, which may be the caller's own.

    Raises PageError for anything but a one-dimensional sequence of integers. A ledger checks that they are ids of the pool.
    """
    if type(given) is np.ndarray and given.dtype is INT64 and given.ndim == 1:
        return given
    try:
        values = np.asarray(given)
    except (ValueError, TypeError, OverflowError) as error:
        raise PageError(f"{name}: pages must be a one-dimensional sequence of integers: {error}") from error
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise PageError(f"{name}: pages must be a one-dimensional integer array, not {values.dtype} of shape {values.shape}")
    if values.dtype.kind == "u" and values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise PageError(f"{name}: page ids must fit in 63 bits, got {values.max()}")
    return values.astype(np.int64)


def _checked_ids(name: str, ids: NDArray[np.int64], max_pages: int) -> NDArray[np.int64]:
    if len(ids) > max_pages:
        raise InsertError(f"{name}: {len(ids)} pages given for a key of {max_pages} whole pages")
    return ids


def _stateful(state: TreeState, name: str) -> int:
    """The index of a component whose states can be given."""
    i = _index(state, name)
    if i not in state.layout.points or state.layout.owner_of[i] != i:
        raise InsertError(f"{name}: is not a component with state pages of its own")
    return i


def _page_by_length(state: TreeState, name: str, by_length: Mapping[Any, Any], end: int) -> dict[int, int]:
    """Checked, in ascending order."""
    checked: dict[int, int] = {}
    if type(by_length) is not dict and not isinstance(by_length, Mapping):
        raise InsertError(f"{name}: states must be a mapping from lengths to pages, not {repr_of(by_length)}")
    for length, page in by_length.items():
        if not (_is_integer(length) and _is_integer(page)):
            given = repr_of({length: page})
            raise InsertError(f"{name}: a state is given as {{length: page}} in integers, not {given}")
        if not 0 < length <= end or length % state.page_size:
            raise InsertError(
                f"{name}: a state at {length} is not at the end of one of the key's {end // state.page_size} pages"
            )
        if not 0 <= page <= MAX_PAGE_ID:
            raise PageError(f"{name}: page ids must be zero or more and fit in 63 bits, got {page}")
        checked[int(length)] = int(page)
    return checked if len(checked) < 2 else dict(sorted(checked.items()))


def _absent(state: TreeState, without: Collection[Any]) -> set[int]:  # unchecked: compiled code would refuse in its own words
    absent: set[int] = set()
    for name in without:
        i = _index(state, name)
        if i in state.layout.required_paths:
            raise InsertError(f"{name}: is a required path, so no pages can go in without it")
        absent.add(i)
    return absent


def _is_integer(number: object) -> bool:
    return type(number) is int or (isinstance(number, int | np.integer) and not isinstance(number, bool))


def _take_pages(state: TreeState, given: dict[int, NDArray[np.int64]], end: int, node: Node | None, matched: int) -> set[int]:
    """Mark the given pages as the tree's, but for components of which it keeps some already at the same position.

    Returns the components whose pages are marked. Raises PageError, with nothing changed, if it owns others.
    """
    taken: set[int] = set()
    try:
        for i, ids in given.items():
            if _take_new(state, i, ids, end, node, matched):
                taken.add(i)
    except BaseException:  # there may be no memory, either
        for i in taken:
            state.device_pools[i].ledger.release(given[i])
        raise
    return taken


def _take_new(state: TreeState, i: int, ids: NDArray[np.int64], end: int, node: Node | None, matched: int) -> bool:
    """Mark pages as the tree's; whether that was done, for it does not keep any at the same position. Raises PageError if it
    owns others.
    """
    ledger = state.device_pools[i].ledger
    begin = end - len(ids) * state.page_size
    if node is None or begin >= matched:
        ledger.take(ids)
        return True
    if ledger.take_free(ids):
        return True
    if any_negative(ids.tobytes()):
        raise PageError(f"{state.components[i].name}: page ids must be zero or more, got {int(ids.min())}")
    known = known_pages(node, matched, i, begin, state.page_size)
    news = np.ones(ids.size, np.bool_)
    overlap = ids[: known.size]
    news[: known.size] = overlap != known
    ledger.check(ids[news])
    return False


def known_pages(node: Node, matched: int, component: int, begin: int, page_size: int) -> NDArray[np.int64]:
    """The tree's device pages of [begin, matched), -1 where it has none."""
    known = np.empty((matched - begin) // page_size, np.int64)
    known.fill(-1)
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


def _check_states(state: TreeState, node: Node | None, matched: int, i: int, by_length: dict[int, int]) -> bool:
    """Whether the tree already keeps some of these states. Raises PageError if it owns others.

    Cost: O(states + nodes passed on the way up to the first of them).
    """
    news = []
    at = node
    for length in reversed(by_length):
        page = by_length[length]
        while at is not None and at.parent is not None and at.parent.end >= length:
            at = at.parent
        value = at.device[i] if at is not None and length <= matched and at.end == length else None
        if value is None or page != int.from_bytes(value.pages, "little"):
            news.append(page)
    state.device_pools[i].ledger.check_few(news)
    return len(news) < len(by_length)


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
