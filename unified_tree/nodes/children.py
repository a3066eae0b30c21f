"""The children of a node, few or many.

A few children are a list: comparing a handful of edges is cheaper than hashing a page. Many children also have a `ChildIndex`:
a hash table of their first pages, and an order by nearest boundary (a length one can resume from). So neither a look-up nor the
loss of the nearest boundary scans all children. A table keyed by the pages themselves would keep every first page twice.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from unified_tree.declare.coverage import NO_LENGTH
from unified_tree.nodes.node import Node
from unified_tree.nodes.order import Order, Ranked

FULL_TABLE = 2048
"""Up to here the table is one dictionary. One that is larger is spread over `SHELVES` of them, so that no insertion pays for
moving all of a large one: at a million children each has a thousand."""
SHELVES = 1024


@mypyc_attr(acyclic=True)
class SiblingPlace(Ranked):
    """A node's place among its siblings, by the nearest boundary in its subtree."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node


class ChildIndex:
    """Index of the children of a node that has many.

    Attributes:
        by_boundary: children with a boundary in their subtree, the nearest first.
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
        """Add a child that begins with a page."""
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
        """Remove a child that begins with a page."""
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
    if node.child_index is not None:
        return node.child_index.find(page)
    child = node.first_child
    while child is not None and not child.edge.startswith(page):
        child = child.next_sibling
    return child


def first_page(child: Node, page_size: int) -> bytes:
    """The page that a node begins with, by which it is found among its siblings."""
    parent = child.parent
    assert parent is not None
    return child.edge[: len(child.edge) // (child.end - parent.end) * page_size]


def attach(node: Node, child: Node, page_size: int, max_listed: int) -> None:
    """Add a new child, before its siblings. Cost: O(1).

    Args:
        page_size: tokens a page.
        max_listed: how many children are just a list.
    """
    younger = node.first_child
    child.next_sibling = younger
    child.previous_sibling = None
    if younger is not None:
        younger.previous_sibling = child
    node.first_child = child
    node.child_count += 1
    if node.child_index is not None:
        _add_to_index(node.child_index, child, page_size)
    elif node.child_count > max_listed:
        index = node.child_index = ChildIndex()
        at: Node | None = child
        while at is not None:
            _add_to_index(index, at, page_size)
            at = at.next_sibling


def _add_to_index(index: ChildIndex, child: Node, page_size: int) -> None:
    index.add(first_page(child, page_size), child)
    place_by_boundary(index, child)


def detach(node: Node, child: Node, page_size: int) -> None:
    """Remove a child. Cost: O(log siblings)."""
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
    index = node.child_index
    if index is not None:
        index.discard(first_page(child, page_size), child)
        _remove_from_boundaries(index, child)
        if node.child_count == 0:
            node.child_index = None


def replace(node: Node, old: Node, new: Node, page_size: int) -> None:
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
    index = node.child_index
    if index is not None:
        page = first_page(new, page_size)
        index.discard(page, old)
        _remove_from_boundaries(index, old)
        index.add(page, new)
        place_by_boundary(index, new)


def place_by_boundary(index: ChildIndex, child: Node) -> None:
    """Put a child where its nearest boundary belongs now. Cost: O(log siblings)."""
    sibling_place = child.sibling_place
    if sibling_place is not None:
        index.by_boundary.discard(sibling_place)
    if child.nearest_boundary == NO_LENGTH:
        child.sibling_place = None
        return
    if sibling_place is None:
        sibling_place = child.sibling_place = SiblingPlace(child)
    index.by_boundary.add(sibling_place, 0, float(child.nearest_boundary), 0.0, 0)


def _remove_from_boundaries(index: ChildIndex, child: Node) -> None:
    if child.sibling_place is not None:
        index.by_boundary.discard(child.sibling_place)
        child.sibling_place = None


def nearest_below(node: Node) -> int:
    """The smallest `nearest_boundary` among the children. Cost: O(1)."""
    if node.child_index is not None:
        first = node.child_index.by_boundary.first
        return first.node.nearest_boundary if isinstance(first, SiblingPlace) else NO_LENGTH
    nearest = NO_LENGTH
    child = node.first_child
    while child is not None:
        nearest = min(nearest, child.nearest_boundary)
        child = child.next_sibling
    return nearest
