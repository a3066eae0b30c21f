"""The children of a node, few or many.

Few are a list: to try the edges of a handful in turn is cheaper than to hash a page. Many have a `Brood` besides: a table by
the hash of their first pages, and an order of their nearest boundaries, so that neither a look-up nor the loss of the
nearest ever goes through all of them. A table keyed by the pages themselves would keep every first page twice.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from unified_tree.node import NO_BOUNDARY, Node
from unified_tree.order import Order, Ranked

FULL_TABLE = 2048
"""Up to here the table is one dictionary. One that is larger is spread over `SHELVES` of them, so that no insertion pays for
moving all of a large one: at a million children each has a thousand."""
SHELVES = 1024


@mypyc_attr(acyclic=True)
class Berth(Ranked):
    """A node's place among its siblings, by the nearest boundary in its subtree."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node


class Brood:
    """What finds one among many children.

    Attributes:
        by_boundary: those under which something can be resumed, the nearest first.
    """

    __slots__ = ("_collided", "_shelves", "_table", "by_boundary")

    def __init__(self) -> None:
        self._table: dict[int, Node] = {}
        self._shelves: list[dict[int, Node]] | None = None
        self._collided: list[Node] = []  # whose hash a sibling had already
        self.by_boundary = Order()

    def find(self, page: bytes) -> Node | None:
        """The child that begins with a page. Cost: O(1), and a comparison of the page."""
        code = hash(page)
        child = self._shelf(code).get(code)
        if child is None or child.edge.startswith(page):
            return child
        for other in self._collided:
            if other.edge.startswith(page):
                return other
        return None

    def add(self, page: bytes, child: Node) -> None:
        """Take in a child that begins with a page."""
        code = hash(page)
        shelf = self._shelf(code)
        if code in shelf:
            self._collided.append(child)
            return
        shelf[code] = child
        if self._shelves is None and len(shelf) > FULL_TABLE:
            self._shelves = [{} for _ in range(SHELVES)]
            for code, node in shelf.items():
                self._shelves[code % SHELVES][code] = node
            self._table = {}

    def discard(self, page: bytes, child: Node) -> None:
        """A child goes."""
        code = hash(page)
        shelf = self._shelf(code)
        if shelf.get(code) is child:
            del shelf[code]
        else:
            self._collided.remove(child)

    def _shelf(self, code: int) -> dict[int, Node]:
        return self._table if self._shelves is None else self._shelves[code % SHELVES]


def child_at(node: Node, page: bytes) -> Node | None:
    """The child that begins with a page. Cost: O(1)."""
    if node.brood is not None:
        return node.brood.find(page)
    child = node.first_child
    while child is not None and not child.edge.startswith(page):
        child = child.next_sibling
    return child


def adopt(node: Node, child: Node, page_bytes: int, max_listed: int) -> None:
    """Hang a new child under a node, before its siblings. Cost: O(1).

    Args:
        page_bytes: how many bytes of an edge its first page is.
        max_listed: how many children are just a list.
    """
    younger = node.first_child
    child.next_sibling = younger
    child.previous_sibling = None
    if younger is not None:
        younger.previous_sibling = child
    node.first_child = child
    node.child_count += 1
    if node.brood is not None:
        _take_in(node.brood, child, page_bytes)
    elif node.child_count > max_listed:
        brood = node.brood = Brood()
        at: Node | None = child
        while at is not None:
            _take_in(brood, at, page_bytes)
            at = at.next_sibling


def _take_in(brood: Brood, child: Node, page_bytes: int) -> None:
    brood.add(child.edge[:page_bytes], child)
    place_by_boundary(brood, child)


def release(node: Node, child: Node, page_bytes: int) -> None:
    """A child goes. Cost: O(log siblings)."""
    if node.cursor is child:
        node.cursor = child.next_sibling
    before, after = child.previous_sibling, child.next_sibling
    if before is None:
        node.first_child = after
    else:
        before.next_sibling = after
    if after is not None:
        after.previous_sibling = before
    child.previous_sibling = child.next_sibling = None
    node.child_count -= 1
    brood = node.brood
    if brood is not None:
        brood.discard(child.edge[:page_bytes], child)
        _leave_boundaries(brood, child)
        if node.child_count == 0:
            node.brood = None


def replace(node: Node, old: Node, new: Node, page_bytes: int) -> None:
    """`new`, which begins with the same page, takes the place of `old` among a node's children. Cost: O(log siblings)."""
    if node.cursor is old:
        node.cursor = new
    before, after = old.previous_sibling, old.next_sibling
    new.previous_sibling, new.next_sibling = before, after
    if before is None:
        node.first_child = new
    else:
        before.next_sibling = new
    if after is not None:
        after.previous_sibling = new
    old.previous_sibling = old.next_sibling = None
    brood = node.brood
    if brood is not None:
        page = new.edge[:page_bytes]
        brood.discard(page, old)
        _leave_boundaries(brood, old)
        brood.add(page, new)
        place_by_boundary(brood, new)


def place_by_boundary(brood: Brood, child: Node) -> None:
    """A child's nearest boundary is what it is now. Cost: O(log siblings)."""
    berth = child.berth
    if berth is not None:
        brood.by_boundary.discard(berth)
    if child.nearest_boundary == NO_BOUNDARY:
        child.berth = None
        return
    if berth is None:
        berth = child.berth = Berth(child)
    brood.by_boundary.add(berth, 0, float(child.nearest_boundary), 0.0, 0)


def _leave_boundaries(brood: Brood, child: Node) -> None:
    if child.berth is not None:
        brood.by_boundary.discard(child.berth)
        child.berth = None


def nearest_below(node: Node) -> int:
    """The smallest `nearest_boundary` among the children. Cost: O(1)."""
    if node.brood is not None:
        first = node.brood.by_boundary.first
        return first.node.nearest_boundary if isinstance(first, Berth) else NO_BOUNDARY
    nearest = NO_BOUNDARY
    child = node.first_child
    while child is not None:
        nearest = min(nearest, child.nearest_boundary)
        child = child.next_sibling
    return nearest
