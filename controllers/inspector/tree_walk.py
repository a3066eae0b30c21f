"""A walk over all nodes of a tree, in slices between which the tree may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unified_tree.inputs.printable import printable
from unified_tree.nodes.node import IDS_A_SHELF

if TYPE_CHECKING:
    from unified_tree.nodes.node import Node, Root
    from unified_tree.state.tree_state import TreeState

COLUMNS: Final = 8
"""Of a node: id, parent's id (0 for its root), start, end, root, whether it is a boundary, last use, number of values."""
COMPONENT_MASK: Final = 127
ON_HOST: Final = 1 << 7
LOCKED: Final = 1 << 8
STRANDED: Final = 1 << 9
COPYING: Final = 1 << 10
COPIED: Final = 1 << 11
PAGES_SHIFT: Final = 16
"""Of a value: its component and these flags, and its pages from this bit on."""


class TreeWalk:
    """One walk. It goes by shelves of ids, and then over those that were added meanwhile.

    Args:
        has_tokens: whether to read the tokens of the nodes, too.

    Attributes:
        rows, values: of the nodes read since `take`; COLUMNS numbers a node, and one a value.
        edges: their tokens, as bytes.
        roots: the names of the namespaces that were met since `take`, and whether each is invalidated, in the order of their
            numbers.
        seen: how many nodes were read.
        has_ended: nothing is left to read.
    """

    def __init__(self, state: TreeState, has_tokens: bool) -> None:
        self._state = state
        self._has_tokens = has_tokens
        self._numbers = sorted(state.nodes.shelf_numbers(), reverse=True)
        self._last_id: int = state.last_node_id
        self._is_second = False
        self._nodes: list[Node] = []
        self._at = 0
        self._root_numbers: dict[Root, int] = {}
        self.rows: list[int] = []
        self.values: list[int] = []
        self.edges: list[bytes] = []
        self.roots: list[tuple[str, bool, bool]] = []
        self.seen = 0
        self.has_ended = False

    def step(self, limit: int) -> None:
        """Read up to so many nodes. Cost: O(limit), and a shelf of ids."""
        while limit > 0 and not self.has_ended:
            if self._at == len(self._nodes):
                if not self._next_shelf():
                    return
                limit -= 1  # a shelf may be empty by now
            last = min(self._at + limit, len(self._nodes))
            limit -= last - self._at
            for i in range(self._at, last):
                self._read(self._nodes[i])
            self._at = last

    def take(self) -> tuple[list[int], list[int], list[bytes], list[tuple[str, bool, bool]]]:
        """The rows, values, edges and roots read since the last call."""
        taken = (self.rows, self.values, self.edges, self.roots)
        self.rows, self.values, self.edges, self.roots = [], [], [], []
        return taken

    def _next_shelf(self) -> bool:
        """Go on to the next shelf; those that were added since the walk began come last. Cost: O(nodes of a shelf)."""
        if not self._numbers:
            if self._is_second:
                self.has_ended = True
                self._nodes = []
                return False
            self._is_second = True
            added = [number for number in self._state.nodes.shelf_numbers() if (number + 1) * IDS_A_SHELF > self._last_id + 1]
            self._numbers = sorted(added, reverse=True)
            self._nodes = []
        elif self._is_second:
            self._nodes = [node for node in self._state.nodes.on_shelf(self._numbers.pop()) if node.id > self._last_id]
        else:
            self._nodes = [node for node in self._state.nodes.on_shelf(self._numbers.pop()) if node.id <= self._last_id]
        self._at = 0
        return True

    def _read(self, node: Node) -> None:
        parent, root = node.parent, node.root
        if parent is None or root is None:  # it left the tree since its shelf was read
            return
        number = self._root_numbers.get(root, -1)
        if number < 0:
            number = self._root_numbers[root] = len(self._root_numbers)
            self.roots.append((printable(root.name[0]), root.name[1], root.is_retired))
        count, touched = 0, 0
        values = self.values
        for tier in range(2):
            for value in node.host if tier else node.device:
                if value is None:
                    continue
                word = (value.page_count << PAGES_SHIFT) | value.component
                if tier:
                    word |= ON_HOST
                if value.locks or value.locked_by is not None:
                    word |= LOCKED
                if value.stranded:
                    word |= STRANDED
                if value.copying:
                    word |= COPYING
                if value.copied:
                    word |= COPIED
                values.append(word)
                count += 1
                touched = max(touched, value.touched)
        rows = self.rows
        rows.append(node.id)
        rows.append(parent.id)
        rows.append(parent.end)
        rows.append(node.end)
        rows.append(number)
        rows.append(1 if node.resumable else 0)
        rows.append(touched)
        rows.append(count)
        if self._has_tokens:
            self.edges.append(node.edge)
        self.seen += 1
