"""Invalidating a namespace, or all of them: the roots leave the tree in O(1), and their nodes are removed later.

No key and no boundary finds a retired node any more. Its unlocked values stay evictable; evictions and `reclaim` remove retired
nodes first, leaves before their parents. One incremental walk visits all of them, a node a step. It skips locked nodes, which
are visited again when their last lock is released.
"""

from __future__ import annotations

from collections import deque

from unified_tree.nodes.node import Node, NodeTable, Root


class Retired:
    """The retired roots, and how far their nodes have been removed. `NodeTable.is_retired` says which nodes are."""

    __slots__ = ("_at", "_is_rising", "_tables", "_unlocked")

    def __init__(self) -> None:
        self._tables: deque[dict[tuple[str, bool], Root]] = deque()  # of what is still to be walked
        self._at: Node | None = None
        self._is_rising = False  # from a child, so its children have been looked at
        self._unlocked: deque[Node] = deque()  # passed over once, and free since

    @property
    def is_pending(self) -> bool:
        """Whether there may be something to remove."""
        return bool(self._unlocked or self._tables or self._at is not None)

    def add(self, roots: dict[tuple[str, bool], Root]) -> None:
        """Roots that left the tree, by name. Cost: O(1)."""
        if roots:
            self._tables.append(roots)

    def unlocked(self, node: Node) -> None:
        """The last lock on a value of a retired node was released. Cost: O(1)."""
        self._unlocked.append(node)

    def removed(self, nodes: NodeTable, node: Node) -> None:
        """A node is about to leave the tree: move the walk on if it is at that node, else have it look at the parent again.

        The walk may have passed the parent because it had this child, which an eviction takes as well as the walk.
        """
        parent = node.parent
        if node is self._at:
            self.pass_over(node)
            return
        is_only_child = parent is not None and parent.first_child is node and node.next_sibling is None
        if parent is not None and parent.parent is not None and is_only_child and nodes.is_retired(node):
            self._unlocked.appendleft(parent)

    def pop_unlocked(self) -> Node | None:
        """A node that was passed over and is free since; None if none is. It may have left the tree. Cost: O(1)."""
        return self._unlocked.popleft() if self._unlocked else None

    def walk(self) -> Node | None:
        """A step of the walk: the node at which it stands, to be deleted or passed over; None if it only moved. Cost: O(1)."""
        at = self._at
        if at is None:
            self._begin_next()
        elif at.first_child is not None and not self._is_rising:
            self._at = at.first_child
        else:
            return at
        return None

    def _begin_next(self) -> None:
        """Start at the next root."""
        table = self._tables[0]
        if table:
            _, root = table.popitem()
            self._at, self._is_rising = root.first_child, False
        else:
            self._tables.popleft()

    def pass_over(self, node: Node) -> None:
        """Move the walk on from the node at which it stands: its subtree is done, or it stays."""
        after, parent = node.next_sibling, node.parent
        assert parent is not None
        self._is_rising = after is None
        self._at = after if after is not None else (parent if parent.parent is not None else None)
