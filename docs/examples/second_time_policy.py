"""An admission policy: a window or state is kept only where the prefix is computed for the second time.

Most prompts are never seen again, and a state may be megabytes. So this one remembers, in a table of fixed size, which prefixes
were offered lately, and lets only those in that it remembers. Paths are always kept.
"""

from __future__ import annotations

from zlib import crc32

from unified_tree import AdmissionPolicy, TreeView
from unified_tree.nodes.node import Node, Root, Value

REMEMBERED = 1 << 14


class SecondTime(AdmissionPolicy):
    """Least recently used first, but for newcomers: those must come twice."""

    def __init__(self, view: TreeView) -> None:
        del view
        self.seen = [0] * REMEMBERED

    def admits(self, value: Value) -> bool:
        """Whether a window or state of this prefix was offered before."""
        prefix = digest(value.node) + value.component
        known = self.seen[prefix % REMEMBERED] == prefix
        self.seen[prefix % REMEMBERED] = prefix
        return known

    def rank(self, value: Value) -> float:
        """The least recently used first."""
        return value.touched


def digest(node: Node) -> int:
    """Of a prefix's namespace and tokens: the same when it comes back after its nodes were evicted or split.

    A node's id would be another then. Two prefixes may have one digest; that costs a policy a wrong guess and nothing else.
    Cost: O(tokens).
    """
    edges = []
    while not isinstance(node, Root):
        edges.append(node.edge)
        assert node.parent is not None
        node = node.parent
    value = crc32(repr(node.name).encode())
    for edge in reversed(edges):
        value = crc32(edge, value)
    return value
