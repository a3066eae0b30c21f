"""Which nodes end at a boundary, and which values no boundary needs.

Two figures a node carry it. `resumable`: every required component is covered at the node's end, over device and host.
`nearest_boundary`: the smallest end of a resumable node in its subtree. A window value at a node is then needed exactly if
`nearest_boundary < end + window`, a path value if there is any boundary below, a state if the node itself is resumable.
Both change only along the nodes that a change touches: upwards while a minimum falls or rises, downwards as far as windows
reach. Counting needs per value instead would make a split enumerate everything below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.node import NO_BOUNDARY, Node, Tier, Value

if TYPE_CHECKING:
    from unified_tree.state import TreeState


def refresh(state: TreeState, node: Node, *, window_changed: bool) -> None:
    """A value came to or went from `node`: update it, and the nodes below whose windows reach into it.

    Cost: O(nodes of one window); after a change of a window the same for each node below that resumes through it.
    """
    if not state.gated:
        return
    _refresh_one(state, node)
    if not window_changed or not state.required_windows:
        return
    widest = max(window for _, window in state.required_windows)
    pending = [child for child in node.children.values() if _spans(state, child)]
    while pending:
        below = pending.pop()
        if below.end - widest < node.end:
            _refresh_one(state, below)
            pending.extend(child for child in below.children.values() if _spans(state, child))


def _spans(state: TreeState, node: Node) -> bool:
    """Whether some required window could pass through the whole node to the ones above."""
    page_count = (node.end - node.start) // state.page_size
    return any(covered_pages(node, i) == page_count for i, _ in state.required_windows)


def _refresh_one(state: TreeState, node: Node) -> None:
    resumable = is_resumable(state, node)
    if resumable == node.resumable:
        mark_values(state, node)
        return
    node.resumable = resumable
    if resumable:
        nearest = boundary_of(state, node)
    else:
        nearest = _nearest_child(node, floor=node.end + state.page_size if state.windows else 0)
    settle(state, node, nearest)


def boundary_of(state: TreeState, node: Node) -> int:
    """What a resumable node contributes to `nearest_boundary`. Without windows only whether there is one matters."""
    return node.end if state.windows else 0


def settle(state: TreeState, node: Node, nearest: int) -> None:
    """`nearest` is the node's new figure: mark its values and bring the ancestors up to date as far as it matters."""
    at = node
    while True:
        before, at.nearest_boundary = at.nearest_boundary, nearest
        mark_values(state, at)
        parent = at.parent
        if nearest == before or parent is None or parent.parent is None or parent.resumable:
            return
        if nearest < before:
            if parent.nearest_boundary <= nearest:
                return
        elif parent.nearest_boundary < before:
            return
        else:
            nearest = _nearest_child(parent, floor=before)
        at = parent


def _nearest_child(node: Node, floor: int) -> int:
    """The smallest figure among the children, none of which is below `floor`; the youngest are looked at first."""
    nearest = NO_BOUNDARY
    for child in reversed(node.children.values()):
        if child.nearest_boundary < nearest:
            nearest = child.nearest_boundary
            if nearest <= floor:
                break
    return nearest


def is_resumable(state: TreeState, node: Node) -> bool:
    """Whether every required component is covered at the node's end, on whatever tier. Cost: O(nodes of the windows)."""
    device, host = node.device, node.host
    for i in state.required_paths:
        if device[i] is None and host[i] is None:
            return False
    for i in state.required_points:
        if device[i] is None and host[i] is None:
            return False
    return all(_window_covered(state, node, i, window) for i, window in state.required_windows)


def _window_covered(state: TreeState, node: Node, component: int, window: int) -> bool:
    missing = state.pages_of(min(window, node.end))
    at: Node | None = node
    while at is not None and at.parent is not None:
        covered = covered_pages(at, component)
        missing -= covered
        if missing <= 0:
            return True
        if covered * state.page_size < at.end - at.parent.end:
            return False
        at = at.parent
    return missing <= 0


def covered_pages(node: Node, component: int) -> int:
    """How many of the node's last pages a component has on some tier."""
    device, host = node.device[component], node.host[component]
    on_device = device.page_count if device is not None else 0
    return on_device if host is None else max(on_device, host.page_count)


def mark_values(state: TreeState, node: Node) -> None:
    """Set `stranded` of every value of the node from its figures."""
    reachable = node.nearest_boundary != NO_BOUNDARY
    for i in state.paths:
        if state.path_can_strand:
            _mark(state, node, i, stranded=not reachable)
    for i, window in state.windows:
        _mark(state, node, i, stranded=node.nearest_boundary >= node.end + window)
    for i in state.points:
        _mark(state, node, i, stranded=not node.resumable)


def _mark(state: TreeState, node: Node, component: int, *, stranded: bool) -> None:
    on_host = node.host[component]
    if on_host is not None and on_host.stranded != stranded:
        _flip(state, on_host, stranded)
    on_device = node.device[component]
    if on_device is not None and on_device.stranded != stranded:
        _flip(state, on_device, stranded)


def _flip(state: TreeState, value: Value, stranded: bool) -> None:
    value.stranded = stranded
    if value.tier is Tier.DEVICE and state.owner_of[value.component] != value.component:
        return
    pool = state.pools(value.tier)[value.component]
    pool.stranded_pages += value.page_count if stranded else -value.page_count
    if stranded or not pool.policy.lazy:
        pool.moved(value)  # else its rank only rose, and `pop_victim` will see
