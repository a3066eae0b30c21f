"""Nodes by their ids.

Ids only grow, so the table is a dictionary of shelves of consecutive ids. An insertion never moves a large table, and empty
shelves of old ids are deleted. A shelf holds only numbers and nodes, which the garbage collector does not traverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node
    from unified_tree.tier import NodeId

IDS_A_SHELF = 512


class NodeTable:
    """The nodes of one tree."""

    __slots__ = ("_count", "_shelves")

    def __init__(self) -> None:
        self._shelves: dict[int, dict[int, Node]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Node]:
        for shelf in list(self._shelves.values()):
            yield from list(shelf.values())

    def shelf_numbers(self) -> list[int]:
        """The numbers of the shelves, for a walk in slices: a shelf that is gone by then is empty. Cost: O(shelves)."""
        return list(self._shelves)

    def on_shelf(self, number: int) -> list[Node]:
        """The nodes of one shelf. Cost: O(1)."""
        shelf = self._shelves.get(number)
        return [] if shelf is None else list(shelf.values())

    def get(self, node_id: int) -> Node | None:
        """The node of an id, None if it is gone or never was. Cost: O(1)."""
        shelf = self._shelves.get(node_id // IDS_A_SHELF)
        return None if shelf is None else shelf.get(node_id)

    def add(self, node: Node) -> None:
        """Add a node whose id is new."""
        number = node.id // IDS_A_SHELF
        shelf = self._shelves.get(number)
        if shelf is None:
            shelf = self._shelves[number] = {}
        shelf[node.id] = node
        self._count += 1

    def remove(self, node_id: NodeId) -> None:
        """Remove a node."""
        number = node_id // IDS_A_SHELF
        shelf = self._shelves[number]
        del shelf[node_id]
        self._count -= 1
        if not shelf:
            del self._shelves[number]

    def release(self) -> None:
        """Cut the references between the nodes of a deleted tree; the garbage collector does not see these cycles."""
        for node in self:
            for value in (*node.device, *node.host):
                if value is not None:
                    value.before = value.behind = value.above = None
                    value.copying = ()
                    value.locked_by = None
            node.device = node.host = ()
            node.parent = node.first_child = node.next_sibling = node.previous_sibling = node.cursor = None
            node.child_index = node.sibling_place = node.root = None
        self._shelves = {}
        self._count = 0
