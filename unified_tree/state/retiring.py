"""Invalidating a namespace, or all of them: the roots leave the tree in O(1), and their nodes are removed later.

No key and no boundary finds a retired node any more. Its unlocked values stay evictable; evictions and `reclaim` remove retired
nodes first, leaves before their parents. One incremental walk visits all of them, a node a step. It skips locked nodes, which
are visited again when their last lock is released.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from unified_tree.nodes.node import Node, NodeTable, Root
from unified_tree.terms.results import EvictResult, record
from unified_tree.terms.tier import PAGE_ID_BYTES, Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Value
    from unified_tree.state.tree_state import TreeState


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

    def retire(self, state: TreeState, namespace: str | None) -> None:
        """Retire one namespace, or all. Cost: O(1)."""
        if namespace is None:
            table, state.roots = state.roots, {}
            state.nodes.age += 1
            if state.texts is not None:
                state.texts.retired(table, None)
        else:
            table = {}
            for name in ((namespace, False), (namespace, True)):
                root = state.roots.pop(name, None)
                if root is not None:
                    root.is_retired = True
                    table[name] = root
                if state.texts is not None:
                    state.texts.retired({} if root is None else {name: root}, name)
        if table:
            self._tables.append(table)

    def unlocked(self, node: Node) -> None:
        """The last lock on a value of a retired node was released. Cost: O(1)."""
        self._unlocked.append(node)

    def removed(self, nodes: NodeTable, node: Node) -> None:
        """A node is about to leave the tree: move the walk on if it is at that node, else have it look at the parent again.

        The walk may have passed the parent because it had this child, which an eviction takes as well as the walk.
        """
        parent = node.parent
        if node is self._at:
            self._advance(node)
            return
        is_only_child = parent is not None and parent.first_child is node and node.next_sibling is None
        if parent is not None and parent.parent is not None and is_only_child and nodes.is_retired(node):
            self._unlocked.appendleft(parent)

    def step(self, state: TreeState, freed: Freed) -> None:
        """Look at one node, and delete it if nothing on it is locked. Cost: O(components + log n)."""
        if self._unlocked:
            node = self._unlocked.popleft()
            if node.parent is not None:
                _delete(state, node, freed)
            return
        at = self._at
        if at is None:
            self._begin_next()
        elif at.first_child is not None and not self._is_rising:
            self._at = at.first_child
        elif not _delete(state, at, freed):  # a node that goes moves the walk on by itself
            self._advance(at)

    def _begin_next(self) -> None:
        """Start at the next root."""
        table = self._tables[0]
        if table:
            _, root = table.popitem()
            self._at, self._is_rising = root.first_child, False
        else:
            self._tables.popleft()

    def _advance(self, node: Node) -> None:
        """Move the walk from a node whose subtree is done to the next one."""
        after, parent = node.next_sibling, node.parent
        assert parent is not None
        self._is_rising = after is None
        self._at = after if after is not None else (parent if parent.parent is not None else None)


def _delete(state: TreeState, node: Node, freed: Freed) -> bool:
    """Delete a leaf on which nothing is locked; whether that was done."""
    if node.first_child is not None:
        return False
    values = [value for tier in (Tier.DEVICE, Tier.HOST) for value in node.values(tier) if value is not None]
    if any(value.locks for value in values):
        return False
    for value in values:
        if node.values(value.tier)[value.component] is value:  # else it went with its owner
            freed.add(state.remove(value))
    freed.deleted_nodes += 1
    state.delete(node, None, 0)
    return True


class Freed:
    """The pages that an eviction freed, by component index, and its counts."""

    def __init__(self, state: TreeState, tier: Tier) -> None:
        self._state = state
        self._tier = tier
        self._chunks: dict[int, list[bytes]] = {}
        self._elsewhere: dict[int, list[bytes]] = {}
        self.page_counts = [0] * len(state.components)
        self.victims = 0
        self.tombstones = 0
        self.deleted_nodes = 0
        self.lost = 0

    def add(self, values: list[Value]) -> None:
        """Values that were removed; a sharer's device value has no pages to give."""
        for value in values:
            if value.tier is Tier.HOST or self._state.layout.owner_of[value.component] == value.component:
                self.add_pages(value.component, value.tier, value.pages)

    def add_pages(self, component: int, tier: Tier, pages: bytes) -> None:
        """Pages that the tree has no more."""
        chunks = self._chunks if tier is self._tier else self._elsewhere
        of_component = chunks.get(component)
        if of_component is None:
            chunks[component] = [pages]
        else:
            of_component.append(pages)
        count = len(pages) // PAGE_ID_BYTES
        state = self._state
        (state.host_pools if tier is Tier.HOST else state.device_pools)[component].evicted_pages += count
        if tier is self._tier:
            self.page_counts[component] += count

    def result(self) -> EvictResult:
        """The result so far."""
        by_name = self._state.by_name
        here, elsewhere = by_name(self._chunks), by_name(self._elsewhere) if self._elsewhere else {}
        return record(EvictResult, (here, elsewhere, self.victims, self.tombstones, self.deleted_nodes, self.lost))
