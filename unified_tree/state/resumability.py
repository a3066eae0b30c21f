"""Which nodes end at a boundary, and which values no boundary needs.

Each node has three marks. `Value.run_pages` of a required window: how far back from the node's end it is covered without a gap,
so that coverage of a node's end is known in O(1). `Node.resumable`: every required component is covered there, over device and
host. `Node.nearest_boundary`: the smallest end of a resumable node in its subtree. A window value at a node is then needed
exactly if `nearest_boundary < end + window`, a path value if there is any boundary below, a state if the node itself is
resumable. Where windows can be rebuilt from a path, a node far enough from the root counts as a boundary for paths: as one that
is farther away than any other.

For example, pages of 16 tokens and a window of 64, which are 4 pages: a node of 10 pages with its last 3 in the window's pool
has `run_pages` 3, and does not end at a boundary. Its child of 2 pages has both. They begin where the parent ends, so its run
goes on there: 2 + 3, cut to the 4 that the window reaches. The child ends at a boundary though its parent does not, and
`nearest_boundary` of both is its end; so the parent's 3 pages are needed, for they lie less than 64 tokens before it.

One change can alter the marks of any number of nodes: when the window of a shared prompt is evicted, all its continuations lose
their boundaries. So a call updates the nodes that it changed itself, and a bounded number of the nodes affected by that. The
rest waits in a queue, and every later call processes as many. Pending marks only affect the order of eviction: matches read the
values themselves. Rejected: counting the needs of each value, because a split would enumerate its whole subtree; and updating
everything at once, because one eviction would pay for a thousand nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unified_tree.declare.coverage import NO_LENGTH
from unified_tree.nodes.children import nearest_below, place_by_boundary
from unified_tree.nodes.node import REPLAY_BOUNDARY, Node, NodeTable, Value
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.declare.component_layout import ComponentLayout
    from unified_tree.declare.suffix import Suffix
    from unified_tree.state.pool import Pool
    from unified_tree.terms.results import Boundary


class Resumability:
    """The marks of one tree, and the queue of nodes whose marks are pending.

    A node in the queue is `is_dirty`: its nearest boundary may have changed with a child's. A node whose windows changed has a
    `cursor`, the next child to visit, and is `again` if they changed once more since that visit began.

    Args:
        layout, nodes, device_pools, host_pools: the tree's.
        settle_limit: nodes that a call updates beyond those that it changed itself.
    """

    __slots__ = (
        "_device_pools",
        "_dirty",
        "_host_pools",
        "_layout",
        "_nodes",
        "_page_size",
        "_settle_limit",
        "_spreading",
        "_windows",
    )

    def __init__(
        self, layout: ComponentLayout, nodes: NodeTable, device_pools: list[Pool], host_pools: list[Pool], settle_limit: int
    ) -> None:
        self._layout = layout
        self._nodes = nodes
        self._device_pools = device_pools
        self._host_pools = host_pools
        self._page_size = size = layout.page_size
        self._settle_limit = settle_limit
        self._windows = tuple((i, window, -(-window.most_tokens // size)) for i, window in layout.required_windows)
        self._dirty: deque[Node] = deque()
        self._spreading: deque[Node] = deque()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is waiting."""
        return not self._dirty and not self._spreading

    def is_pending(self, node: Node) -> bool:
        """Whether a node waits to be updated. Cost: O(1)."""
        parent = node.parent
        return node.is_dirty or (parent is not None and (parent.cursor is not None or parent.again))

    def update(self, node: Node, *, lost_window: bool = False) -> None:
        """A value of `node` was added or removed: update the node's own marks, and queue affected nodes. Cost: O(components).

        Args:
            lost_window: the node lost the last value of a window, and with it the stored run.
        """
        if not self._layout.is_gated:
            return
        if self._measure(node) or lost_window:
            self._spread(node)
        node.resumable = self.ends_at_boundary(node)
        self._set_nearest(node, self._nearest(node, nearest_below(node)))
        self._mark_values(node)

    def is_boundary(self, boundary: Boundary) -> bool:
        """See Transfers.is_boundary."""
        node = self._nodes.get(boundary.node)
        if node is None or node.end != boundary.length or self._nodes.is_retired(node):
            return False
        return not self._layout.is_gated or self.is_covered(node)

    def _nearest(self, node: Node, below: int) -> int:
        """What `nearest_boundary` of a node is, from that of all below. Without windows only whether there is one matters."""
        if node.resumable:
            return node.end if self._layout.windows else 0
        return min(below, REPLAY_BOUNDARY) if node.end >= self._layout.rebuilt_from else below

    def deleted(self, node: Node) -> None:
        """A node is about to leave the tree, with no values and no children. Cost: O(log siblings)."""
        self._set_nearest(node, NO_LENGTH)

    def settle_share(self) -> None:
        """Process the share of the queue that every call does. Cost: O(settle_limit log n)."""
        if self._dirty or self._spreading:
            self.settle(self._settle_limit)

    def settle(self, limit: int) -> int:
        """Update at most `limit` waiting nodes; returns how many. Cost: O(limit log n)."""
        left = limit
        dirty, spreading = self._dirty, self._spreading
        while left > 0:
            if dirty:
                node = dirty.popleft()
                node.is_dirty = False
                if node.parent is not None:
                    self.update(node)
                left -= 1
            elif spreading:
                node = spreading[0]
                child = node.cursor
                if child is None and node.again:
                    node.again = False
                    child = node.first_child
                if child is None:
                    node.cursor = None
                    spreading.popleft()
                    continue
                node.cursor = child.next_sibling
                self.update(child)
                left -= 1
            else:
                break
        return limit - left

    def is_covered(self, node: Node) -> bool:
        """Whether every required component is covered at the node's end over both tiers; exact even for a waiting node.

        Cost: O(1), or O(nodes of the windows) while something waits.
        """
        if self.is_settled:
            return node.resumable
        if not self._has_paths_and_states(node):
            return False
        return all(self._covers_window(node, i, window) for i, window, _ in self._windows)

    def _covers_window(self, node: Node, component: int, window: Suffix) -> bool:
        size = self._page_size
        missing = window.pages(node.end, size)
        at, parent = node, node.parent
        if not missing:
            return True
        while parent is not None:
            covered = covered_pages(at, component)
            missing -= covered
            if missing <= 0:
                return True
            if covered * size < at.end - parent.end:
                return False
            at, parent = parent, parent.parent
        return False

    def cut(self, pieces: Sequence[Node], lower: Node) -> None:
        """`pieces`, from the top down, were cut off the front of `lower`. Cost: O(components) each, and O(log siblings)."""
        if not self._layout.is_gated:
            return
        for piece in pieces:
            self._measure(piece)
            piece.resumable = self.ends_at_boundary(piece)
        below = lower
        for piece in reversed(pieces[1:]):
            piece.nearest_boundary = self._nearest(piece, below.nearest_boundary)
            self._mark_values(piece)
            below = piece
        top = pieces[0]
        parent = top.parent
        assert parent is not None
        top.nearest_boundary = lower.nearest_boundary
        if parent.child_index is not None:
            place_by_boundary(parent.child_index, top)
        self._set_nearest(top, self._nearest(top, below.nearest_boundary))
        self._mark_values(top)
        if not self._is_measured(lower):  # the windows above have changed, and what waits for that ends at `top`, which knows
            self._spread(pieces[-1])

    def _set_nearest(self, node: Node, nearest: int) -> None:
        before = node.nearest_boundary
        if nearest == before:
            return
        node.nearest_boundary = nearest
        parent = node.parent
        assert parent is not None
        if parent.parent is None:
            return
        if parent.child_index is not None:
            place_by_boundary(parent.child_index, node)
        if parent.resumable or parent.is_dirty:
            return
        if nearest < parent.nearest_boundary or before == parent.nearest_boundary:
            parent.is_dirty = True
            self._dirty.append(parent)

    def _spread(self, node: Node) -> None:
        """The windows up to a node's end changed: its children must be looked at."""
        if node.first_child is None:
            return
        if node.cursor is not None or node.again:
            node.again = True
        else:
            node.cursor = node.first_child
            self._spreading.append(node)

    def expected_run(self, node: Node, component: int, max_pages: int) -> int:
        """What `run_pages` of a window is, from the parent's. Cost: O(1)."""
        parent = node.parent
        assert parent is not None
        run = covered_pages(node, component)
        if parent.parent is not None and run * self._page_size == node.end - parent.end:
            run += run_of(parent, component)
        return min(run, max_pages)

    def _measure(self, node: Node) -> bool:
        """Update the runs of a node; whether one changed."""
        changed = False
        for i, _, max_pages in self._windows:
            value = run_holder(node, i)
            if value is not None:
                run = self.expected_run(node, i, max_pages)
                if run != value.run_pages:
                    value.run_pages = run
                    changed = True
        return changed

    def _is_measured(self, node: Node) -> bool:
        """Whether the runs of a node are those that follow from its parent's. Cost: O(components)."""
        for i, _, max_pages in self._windows:
            value = run_holder(node, i)
            if value is not None and value.run_pages != self.expected_run(node, i, max_pages):
                return False
        return True

    def ends_at_boundary(self, node: Node) -> bool:
        """Whether every required component is covered at the node's end, according to its runs. Cost: O(components)."""
        if not self._has_paths_and_states(node):
            return False
        size = self._page_size
        return all(run_of(node, i) >= window.pages(node.end, size) for i, window, _ in self._windows)

    def _has_paths_and_states(self, node: Node) -> bool:
        device, host = node.device, node.host
        for i in self._layout.required_paths:
            if device[i] is None and host[i] is None:
                return False
        return all(device[i] is not None or host[i] is not None for i in self._layout.required_points)

    def deviations(self, node: Node) -> list[str]:
        """Which marks of a node disagree with its values, its parent and its children; none for a settled node."""
        found = []
        for i, _, max_pages in self._windows:
            value = run_holder(node, i)
            if value is not None and value.run_pages != self.expected_run(node, i, max_pages):
                found.append(f"a run of {value.run_pages} pages of component {i}, not {self.expected_run(node, i, max_pages)}")
        if node.resumable != self.ends_at_boundary(node):
            found.append("a boundary" if node.resumable else "no boundary")
        nearest = self._nearest(node, min((child.nearest_boundary for child in node.children()), default=NO_LENGTH))
        if node.nearest_boundary != nearest:
            found.append(f"its nearest boundary at {node.nearest_boundary}, not {nearest}")
        return found

    def _mark_values(self, node: Node) -> None:
        """Set `stranded` of every value of the node from its marks."""
        nothing_below = node.nearest_boundary == NO_LENGTH
        for i in self._layout.paths:
            self._mark(node, i, nothing_below)
        for i, window in self._layout.windows:
            self._mark(node, i, node.nearest_boundary >= window.until(node.end))
        for i in self._layout.points:
            self._mark(node, i, not node.resumable)

    def is_needed(self, value: Value) -> bool:
        """Whether some boundary at a node's end needs a value, according to its node's marks."""
        node = value.node
        if self._layout.is_path[value.component]:
            return node.nearest_boundary != NO_LENGTH
        if value.component in self._layout.points:
            return self.ends_at_boundary(node)
        return node.nearest_boundary < dict(self._layout.windows)[value.component].until(node.end)

    def _mark(self, node: Node, component: int, stranded: bool) -> None:
        on_host = node.host[component]
        if on_host is not None and on_host.stranded != stranded:
            self._flip(on_host, stranded)
        on_device = node.device[component]
        if on_device is not None and on_device.stranded != stranded:
            self._flip(on_device, stranded)

    def _flip(self, value: Value, stranded: bool) -> None:
        value.stranded = stranded
        if value.tier is Tier.DEVICE and self._layout.owner_of[value.component] != value.component:
            return
        pool = (self._device_pools if value.tier is Tier.DEVICE else self._host_pools)[value.component]
        pool.stranded_pages += value.page_count if stranded else -value.page_count
        pool.reorder(value)


def run_holder(node: Node, component: int) -> Value | None:
    """The value on which a window's run is kept."""
    value = node.device[component]
    return value if value is not None else node.host[component]


def run_of(node: Node, component: int) -> int:
    """How many pages up to the node's end a required window covers without a gap, according to the marks."""
    value = run_holder(node, component)
    return 0 if value is None else value.run_pages


def covered_pages(node: Node, component: int) -> int:
    """How many of the node's last pages a component has on some tier."""
    device, host = node.device[component], node.host[component]
    on_device = device.page_count if device is not None else 0
    return on_device if host is None else max(on_device, host.page_count)
