"""Forgetting a namespace, or all of them, at once: its roots leave the tree in O(1), their nodes are taken apart later.

A retired node is found by no key and no boundary any more. Its unlocked values stay evictable as ever; evictions and
`reclaim` take retired nodes first, leaves before their parents. What is locked or hangs above it is passed over, and goes
by the ordinary order once its lock does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unified_tree.node import Node, NodeId, Root, Tier
from unified_tree.resumability import refresh

if TYPE_CHECKING:
    from unified_tree.evicting import Freed
    from unified_tree.state import TreeState


class Retired:
    """The roots given up, and how far they have been taken apart.

    Attributes:
        roots: what is still to be looked through, by the tables they were in.
    """

    def __init__(self) -> None:
        self.roots: list[dict[tuple[str, bool], Root]] = []
        self._last_node_id = NodeId(0)
        self._by_name = False
        self._leaves: Iterator[Node] | None = None

    def retire(self, state: TreeState, namespace: str | None) -> None:
        """Give up one namespace, or all. Cost: O(1)."""
        if namespace is None:
            given_up, state.roots = state.roots, {}
            self._last_node_id = state.last_node_id
        else:
            given_up = {}
            for name in ((namespace, False), (namespace, True)):
                root = state.roots.pop(name, None)
                if root is not None:
                    given_up[name] = root
            self._by_name = self._by_name or bool(given_up)
        if given_up:
            self.roots.append(given_up)

    def holds(self, state: TreeState, node: Node) -> bool:
        """Whether a node was given up. Cost: O(1), or O(depth) once a single namespace was given up."""
        if node.id <= self._last_node_id:
            return True
        if not self._by_name:
            return False
        while node.parent is not None:
            node = node.parent
        return not isinstance(node, Root) or state.roots.get(node.name) is not node

    def reclaim(self, state: TreeState, freed: Freed, enough: Callable[[], bool]) -> None:
        """Delete unlocked nodes from the leaves up until it is `enough` or all were looked at. Cost: O(nodes looked at)."""
        while self.roots and not enough():
            if self._leaves is None:
                self._leaves = _leaves(list(self.roots[-1].values()))
            leaf = next(self._leaves, None)
            if leaf is None:
                self._leaves = None
                self.roots.pop()
                continue
            _delete_upwards(state, leaf, freed)


def _leaves(roots: list[Root]) -> Iterator[Node]:
    """The leaves below some roots, though the tree changes meanwhile; some may be gone by the time they are told."""
    pending: list[Node] = list(roots)
    while pending:
        node = pending.pop()
        if node.children:
            pending.extend(node.children.values())
        else:
            yield node


def _delete_upwards(state: TreeState, node: Node, freed: Freed) -> None:
    """Delete a leaf and the ancestors that become leaves, as far as nothing is locked."""
    while node.parent is not None and state.nodes.get(node.id) is node and not node.children:
        values = [value for tier in (Tier.DEVICE, Tier.HOST) for value in node.values(tier) if value is not None]
        if any(value.locks for value in values):
            return
        for value in values:
            if node.values(value.tier)[value.component] is value:  # else it went with its owner
                freed.add(state.remove(value))
        refresh(state, node, window_changed=False)
        freed.deleted_nodes += 1
        parent = node.parent
        state.delete(node)
        node = parent
