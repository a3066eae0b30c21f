"""Finding a key and the longest boundary along it. Nothing here changes the tree's structure.

The walk goes down by one dictionary look-up and one memory comparison a node. Boundaries (lengths one can resume from) are then
searched from the deepest node upwards. The first try usually succeeds, so the cost of coverage does not grow with the depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from unified_tree.declare.keys import Key
from unified_tree.native.chosen import agreement
from unified_tree.nodes.children import child_at
from unified_tree.nodes.node import Node, window_values
from unified_tree.terms.results import NOWHERE, Boundary, Match, record
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from unified_tree.declare.suffix import Suffix
    from unified_tree.state.tree_state import TreeState


def walk(state: TreeState, key: Key, start: Node, limit: int) -> tuple[Node, int]:
    """The deepest node on the key's path below `start`, and how many tokens match, at most `limit` and in whole pages.

    Cost: O(depth) look-ups and one comparison of the matched bytes.
    """
    data = key.data
    width = key.width_bytes
    base = key.begin * width
    page = state.page_size * width
    stop = limit // state.page_size * page - base
    position = start.end * width - base
    node = start
    while position < stop:
        common = 0
        if node.child_index is None:
            child = node.first_child
            while child is not None:
                common = agreement(data, child.edge, position, stop, page)
                if common:
                    break
                child = child.next_sibling
        else:
            child = child_at(node, bytes(data[position : position + page]))
            if child is not None:
                common = agreement(data, child.edge, position, stop, page)
        if child is None:
            break
        if common < len(child.edge):
            return child, (base + position + common) // width
        node = child
        position += common
    return node, (base + position) // width


def match(state: TreeState, key: Key, limit: int, *, touch: bool, checks: bool = False) -> Match:
    """Match `key` up to `limit` tokens; see UnifiedTree.match_prefix.

    Args:
        checks: raise InvalidKeyError, with nothing changed, for a negative id. Only what does not match is looked at, because
            no id in the tree is negative.

    It returns three boundaries. For example, a key has 1,000 tokens. All its path pages are in the tree: those of the first 800
    on device, the rest on host. A window of 100 tokens is on device before token 300, and on host before token 1,000. Then
    `device` is 300, where both are on device. `reachable` is 1,000, where both are on some tier. `rebuild` is 800, the end of
    the path on device, if the window before it can be recomputed from that path at a cost of `rebuild_tokens`.
    """
    root = state.roots.get((key.namespace, key.bigram))
    node, length = (None, 0) if root is None else walk(state, key, _walked(state, key, root, limit), limit)
    if checks:
        key.require_tokens(length)
    if node is None or length == 0:
        if touch:
            _miss(state)
        return _MISS
    path_node, path_length = device_node, device_length = node, length
    if state.host_value_count:  # else every node's paths are on device
        path_node, path_length = path_reach(state, node, length, device_only=False)
        device_node, device_length = path_reach(state, node, length, device_only=True)
    if not state.layout.is_gated:
        device = record(Boundary, (device_node.id, device_length))
        reachable = device if device_length == path_length else record(Boundary, (path_node.id, path_length))
        rebuild, rebuild_tokens = device, 0
        save_at: tuple[int, ...] = ()
    else:
        device = deepest_boundary(state, device_node, device_length, device_only=True)
        reachable = deepest_boundary(state, path_node, path_length, device_only=False) if state.host_value_count else device
        rebuild, rebuild_tokens = _rebuild(state, device, device_node, device_length)
        save_at = _branch_point(state, path_length, device.length)
    if touch:
        _use(state, device, reachable, path_node, path_length)
    if state.ghosts is not None:
        state.ghosts.matched = node
    known = device if device.length == length and device.node == node.id else record(Boundary, (node.id, length))
    if isinstance(key.data, bytes):
        key.walked = (state.mark, known)
    return record(Match, (device, reachable, rebuild, rebuild_tokens, path_length, save_at, known))


def _walked(state: TreeState, key: Key, root: Node, limit: int) -> Node:
    """The deepest node that an earlier walk along this key ended at or passed, and within a limit; else the key's root."""
    walked = key.walked
    if walked is None or walked[0] is not state.mark:
        return root
    return node_above(state, root, walked[1], limit)


def node_above(state: TreeState, root: Node, after: Boundary, limit: int) -> Node:
    """The deepest node that ends at or above a boundary on a key, and within a limit; the key's root if its node is gone.

    Cost: O(nodes passed).
    """
    node = state.nodes.get(after.node) if after.length else None
    if node is None or node.root is not root:
        return root
    while node.parent is not None and node.end > min(after.length, limit):
        node = node.parent
    return node


_MISS: Final = Match(NOWHERE, NOWHERE, NOWHERE, 0, 0, (), NOWHERE)


def path_reach(state: TreeState, node: Node, length: int, *, device_only: bool) -> tuple[Node, int]:
    """How far up from (node, length) one must go to find every required path component."""
    while node.parent is not None:
        for i in state.layout.required_paths:
            if node.device[i] is None and (device_only or node.host[i] is None):
                break
        else:
            return node, length
        node = node.parent
        length = node.end
    return node, 0


def path_boundary(state: TreeState, known: Boundary) -> Boundary:
    """The longest boundary at or above one to which the tree's nodes know a key, with every required path on device, whatever
    windows and states it has. Cost: O(nodes passed).
    """
    node = state.nodes.get(known.node) if known.length else None
    if node is None:
        return NOWHERE
    node, length = path_reach(state, node, known.length, device_only=True)
    return record(Boundary, (node.id, length)) if length else NOWHERE


def deepest_boundary(state: TreeState, node: Node, length: int, *, device_only: bool) -> Boundary:
    """The longest boundary at or above (node, length), where the paths are covered. Cost: O(nodes passed and of windows)."""
    for i in state.layout.required_points:
        if length != node.end or (node.device[i] is None and (device_only or node.host[i] is None)):
            return _boundary_above(state, node, length, device_only)
    for i, window in state.layout.required_windows:
        if window_gap(state, node, length, i, window, device_only=device_only) is not None:
            return _boundary_above(state, node, length, device_only)
    return record(Boundary, (node.id, length)) if node.parent is not None else NOWHERE


def once_boundary(state: TreeState, node: Node, length: int, floor: int) -> int:
    """The longest length at or above (node, length), and above `floor`, at which a request could have resumed if nothing had
    been evicted; `floor` or less if there is none. Cost: O(nodes passed and of windows).
    """
    if len(state.layout.required_points) == 1 and not state.layout.required_windows:
        i = state.layout.required_points[0]
        while length > floor:
            if length == node.end and (node.device[i] is not None or node.host[i] is not None or node.lost_of(i) is not None):
                break
            assert node.parent is not None
            node = node.parent
            length = node.end
        return length
    return _boundary_above(state, node, length, device_only=False, once=True).length


def once_boundary_from(state: TreeState, node: Node) -> int:
    """The smallest length in a node such that a request could have resumed from there and from all behind it, had nothing been
    evicted; beyond the node's end if there is none. Cost: O(nodes of the windows).
    """
    end = node.end
    for i in state.layout.required_points:
        if node.device[i] is None and node.host[i] is None and node.lost_of(i) is None:
            return end + 1
    if not state.layout.required_windows:
        return end
    start: i64 = node.start
    size: i64 = state.page_size
    first: i64 = end if state.layout.required_points else start + 1
    for i, window in state.layout.required_windows:
        reached: i64 = end
        floor: i64 = window.start(start + size)  # from here on nothing in the node lacks a window
        at: Node = node
        while reached > 0 and reached > floor:
            parent = at.parent
            if parent is None:
                break
            above: i64 = parent.end
            reached -= size * _pages_once(state, at, i)
            if reached > above:
                break
            reached = above
            at = parent
        if reached > 0:
            first = max(first, window.until(reached))
    return first


def _pages_once(state: TreeState, node: Node, component: int) -> i64:
    """How many of a node's last pages a component has, or had before it lost them."""
    count: i64 = 0
    value = node.device[component]
    if value is not None:
        count = len(value.pages) // PAGE_ID_BYTES
    if state.host_value_count:
        value = node.host[component]
        if value is not None and len(value.pages) > PAGE_ID_BYTES * count:
            count = len(value.pages) // PAGE_ID_BYTES
    if node.lost is not None:
        lost = node.lost_of(component)
        if lost is not None and lost.page_count > count:
            count = lost.page_count
    return count


def _boundary_above(state: TreeState, node: Node, length: int, device_only: bool, once: bool = False) -> Boundary:
    """As `deepest_boundary`, where the first try failed.

    How far each window is known to be covered is kept from try to try, so that no node is looked at twice for a window.
    """
    scans = [_WindowScan(i, window) for i, window in state.layout.required_windows]
    while node.parent is not None:
        retry: tuple[Node, int] | None = None
        for i in state.layout.required_points:
            if length != node.end or (node.device[i] is None and (device_only or node.host[i] is None)):
                if once and length == node.end and node.lost_of(i) is not None:
                    continue
                retry = node.parent, node.start
                break
        else:
            for scan in scans:
                retry = scan.gap(state, node, length, device_only, once)
                if retry is not None:
                    break
        if retry is None:
            return record(Boundary, (node.id, length))
        node, length = retry
    return NOWHERE


class _WindowScan:
    """How far up one component's window is known to be covered, while lengths are tried from the deepest up."""

    __slots__ = ("at", "component", "reached", "window")

    def __init__(self, component: int, window: Suffix) -> None:
        self.component = component
        self.window = window
        self.at: Node | None = None
        self.reached = 0

    def gap(self, state: TreeState, node: Node, length: int, device_only: bool, once: bool = False) -> tuple[Node, int] | None:
        """As `window_gap`. Lengths are tried in descending order."""
        at = self.at
        if at is None or self.reached >= length:
            at = node
            self.reached = length
        needed_from = self.window.start(length)
        while self.reached > needed_from:
            parent = at.parent
            if parent is None:
                break
            covered = covered_tokens(state, at, self.component, device_only)
            lost = at.lost_of(self.component) if once else None
            if lost is not None:
                covered = max(covered, lost.page_count * state.page_size)
            first = max(parent.end, at.end - covered)
            if first >= self.reached:
                free = self.window.free_before(self.reached, state.page_size)
                self.at = None
                return (at, free) if free > parent.end else (parent, parent.end)
            self.reached = first
            if first == parent.end:
                at = parent
        self.at = at
        return None


def window_gap(
    state: TreeState, node: Node, length: int, component: int, window: Suffix, *, device_only: bool
) -> tuple[Node, int] | None:
    """None if a component has all of the window at (node, length); else the next shorter length to try, and its node.

    Every length between a missing page and here needs that page, too. Before it the component has nothing in its node. So the
    next length to try is one in that node whose window is empty, or else the parent's end.

    Cost: O(nodes of the window).
    """
    return _WindowScan(component, window).gap(state, node, length, device_only)


def covered_tokens(state: TreeState, node: Node, component: int, device_only: bool) -> int:
    """How many of the node's last tokens a component has on device, or on either tier."""
    on_device = node.device[component]
    count = on_device.page_count if on_device is not None else 0
    on_host = node.host[component]
    if not device_only and on_host is not None and on_host.page_count > count:
        count = on_host.page_count
    return count * state.page_size


def _rebuild(state: TreeState, device: Boundary, node: Node, length: int) -> tuple[Boundary, int]:
    """Where a run can resume by rebuilding the windows, and how many tokens it runs again.

    It starts at a page, early enough that the whole first page of the window before `length` comes out exact: another
    request may later resume one page earlier and use that page.
    """
    if state.layout.rebuild_tokens is None:
        return device, 0
    start = (length - state.layout.rebuild_tokens - state.page_size + 1) // state.page_size * state.page_size
    if start <= device.length:
        return device, 0
    return record(Boundary, (node.id, length)), length - start


def _branch_point(state: TreeState, path_length: int, resumable_length: int) -> tuple[int, ...]:
    point = path_length // state.layout.save_grid_tokens * state.layout.save_grid_tokens
    return (point,) if point > resumable_length else ()


def use(state: TreeState, found: Match, held: Boundary) -> None:
    """Count a match as a use after it was made without `touch`. Values that have left the tree since are skipped.

    Args:
        held: a locked boundary on the same key, at least as long as `found.device`; or one of length zero.

    Cost: as the touch of a match.
    """
    length = found.path_length
    node = state.nodes.get(found.known.node)
    if node is None and length:
        node = state.nodes.get(held.node)
    if node is None or length == 0:
        _miss(state)
        return
    length = min(length, node.end)
    node = _holder(node, length)
    device, reachable = found.device, found.reachable
    is_longer = reachable.length > device.length
    _use(
        state,
        _named(node, device),
        _named(node, reachable) if is_longer and reachable.length <= length else NOWHERE,
        node,
        length,
    )


def _named(node: Node, boundary: Boundary) -> Boundary:
    """A boundary by the node in which it lies now, at or above one on its path."""
    at = _holder(node, boundary.length)
    return boundary if at.id == boundary.node else record(Boundary, (at.id, boundary.length))


def _holder(node: Node, length: int) -> Node:
    """The node at or above one in which a length lies."""
    parent = node.parent
    while parent is not None and length <= parent.end:
        node, parent = parent, parent.parent
    return node


def _miss(state: TreeState) -> None:
    """A request finds nothing."""
    if state.listener is not None:
        state.arrival = state.listener.arrived(None, 0, 0)


def _use(state: TreeState, device: Boundary, reachable: Boundary, path_node: Node, path_length: int) -> None:
    """A request uses what it matched."""
    state.tick()
    if state.listener is not None:
        state.arrival = state.listener.arrived(path_node, path_length, max(device.length, reachable.length))
    _touch(state, device, path_node, path_length, Tier.DEVICE)
    if reachable.length > device.length:
        _touch(state, reachable, path_node, path_length, Tier.HOST)


def touch(state: TreeState, node: Node, length: int) -> None:
    """A boundary on device is used: as a match that ends there."""
    state.tick()
    _touch(state, record(Boundary, (node.id, length)), node, length, Tier.DEVICE)


def _touch(state: TreeState, boundary: Boundary, path_node: Node, path_length: int, tier: Tier) -> None:
    """A match uses the deepest path node, the boundary's window and its state."""
    now, ages, is_host = state.clock, state.ages, tier is Tier.HOST
    owned = state.layout.on_host if is_host else state.layout.on_device
    pools = state.host_pools if is_host else state.device_pools
    for i in owned.paths:
        value = (path_node.host if is_host else path_node.device)[i]
        if value is not None:
            if ages is not None:
                ages.used(value)
            pools[i].used(value, path_length, now)
    if boundary.length == 0 or not (owned.points or owned.windows):
        return
    node = path_node if path_node.id == boundary.node else state.nodes.get(boundary.node)
    assert node is not None
    for i in owned.points:
        value = (node.host if is_host else node.device)[i] if node.end == boundary.length else None
        if value is not None:
            if ages is not None:
                ages.used(value)
            pools[i].used(value, boundary.length, now)
    for i, window in owned.windows:
        values = window_values(node, window.start(boundary.length), i, tier)
        if ages is not None and values:
            ages.used(values[0])
        for value in values:
            pools[i].used(value, min(boundary.length, value.node.end), now)


def supersede(state: TreeState, i: int, window: Suffix, boundary: Boundary, later: int) -> None:
    """See UnifiedTree.supersede."""
    node = state.nodes.get(boundary.node)
    for value in [] if node is None else window_values(node, window.start(boundary.length), i, Tier.DEVICE):
        if not value.hits and value.node.end <= window.start(later):
            value.touched = 0
            state.device_pools[i].reorder(value)


def key_of(node: Node | None, length: int, begin: int = 0) -> Key:
    """The elements [begin, length) on the way to `node`; the empty key for no node."""
    if node is None or node.root is None:
        return Key.from_elements(b"", "", bigram=False)
    namespace, bigram = node.root.name
    pieces: list[bytes] = []
    at, width = node, 0
    while (parent := at.parent) is not None and at.end > begin:
        first, last = max(begin - parent.end, 0), min(length, at.end) - parent.end
        width = len(at.edge) // (at.end - parent.end)
        pieces.append(at.edge[first * width : last * width])
        at = parent
    pieces.reverse()
    return Key.from_elements(b"".join(pieces), namespace, bigram=bigram, begin=begin, width_bytes=width)


def spare_from(state: TreeState, node: Node, length: int) -> int | None:
    """The start of the deepest node with a spare window that a boundary at (node, length) needs and host does not have; None
    without such a window. Cost: O(nodes of the windows).
    """
    start: int | None = None
    for i, window in state.layout.on_device.windows:
        for value in window_values(node, window.start(length), i, Tier.DEVICE):
            if value.spare and value.node.host[i] is None:
                start = value.node.start if start is None else max(start, value.node.start)
                break
    return start


def collect_at(
    state: TreeState,
    node: Node,
    length: int,
    i: int,
    tier: Tier,
    pages_of: Callable[[Node, int], bytes] | None = None,
    *,
    begin: int = 0,
) -> list[bytes]:
    """As `collect`, of a component by index, from `begin` up to a length in a node; a state's whatever `begin` is."""
    if i in state.layout.points:
        return [pages_at(node, i, tier, pages_of)] if length == node.end else []
    chunks: list[bytes] = []
    at = node
    while (parent := at.parent) is not None and at.end > begin:
        pages = pages_at(at, i, tier, pages_of)
        if not pages:
            if state.layout.is_path[i] and tier is Tier.DEVICE:
                chunks.clear()  # the path ends further up: it is optional, or what a load brings has nothing to stand on
                at = parent
                continue
            break
        first = max(begin, at.end - len(pages) // PAGE_ID_BYTES * state.page_size)
        cut = (min(length, at.end) - first) // state.page_size * PAGE_ID_BYTES
        if cut <= 0:
            break
        skip = len(pages) - (at.end - first) // state.page_size * PAGE_ID_BYTES
        chunks.append(pages if skip == 0 and cut == len(pages) else pages[skip : skip + cut])
        if first > parent.end:
            break
        at = parent
    chunks.reverse()
    return chunks


def pages_at(node: Node, component: int, tier: Tier, pages_of: Callable[[Node, int], bytes] | None) -> bytes:
    """The last pages of a node that a component has."""
    if pages_of is not None:
        return pages_of(node, component)
    value = (node.host if tier is Tier.HOST else node.device)[component]
    return value.pages if value is not None else b""
