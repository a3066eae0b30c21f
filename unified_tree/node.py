"""What the tree is made of: nodes, and the values that components have at them.

A node is a run of whole pages. For every component it has at most one `Value` per tier. A missing value is a tombstone:
the node keeps its place and its other components. A value lists the page ids of a *suffix* of its node's pages: all of them
for `Path`, the last k for `Trailing`, one state saved at the node's end for `Point`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NewType

if TYPE_CHECKING:
    from unified_tree.effect import Effect
    from unified_tree.receipt import Receipt

NodeId = NewType("NodeId", int)
PageId = NewType("PageId", int)
PAGE_ID_BYTES = 8
ROOT_ID = NodeId(0)
"""The id in every boundary of length zero, whatever its namespace."""
NO_BOUNDARY = 1 << 62
"""`Node.nearest_boundary` of a node under which nothing can be resumed."""


class Tier(IntEnum):
    """Where pages live. `STORAGE` (L3) is addressed by content, never by node, so nodes hold the first two."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2


class Value:
    """The pages of one component at one node on one tier, with its lock count and its place in the eviction order.

    Attributes:
        pages: int64 page ids as bytes, the last `page_count` pages of the node.
        locks: for device `Path` values one per receipt at this node's end and one per locked child; else one per receipt.
        children: for `Path` values, how many child nodes have this component on this tier.
        touched: the tree's clock at the last use; `created`: at creation; `hits`: matches that ended here.
        marks: uses that ended inside the node, {length: (touched, hits)}; a split hands each to the half it ended in.
        score: an eager policy's own figure (the cost-aware one keeps its rank here).
        entry: its place in the eviction order, None while it has none.
        stranded: no boundary needs it.
        copied: its pages are on the other tier too, all of them.
        copying: the open transfers that copy it to the other tier, each other pages of it.
        holders: receipts that pin this value by name (all but device `Path`).
    """

    __slots__ = (
        "children",
        "component",
        "copied",
        "copying",
        "created",
        "entry",
        "hits",
        "holders",
        "locks",
        "marks",
        "node",
        "page_count",
        "pages",
        "priority",
        "score",
        "stranded",
        "tier",
        "touched",
    )

    def __init__(self, node: Node, component: int, tier: Tier, pages: bytes, now: int, priority: int) -> None:
        self.node = node
        self.component = component
        self.tier = tier
        self.pages = pages
        self.page_count = len(pages) // PAGE_ID_BYTES
        self.locks = 0
        self.children = 0
        self.touched = now
        self.created = now
        self.hits = 0
        self.priority = priority
        self.marks: dict[int, tuple[int, int]] | None = None
        self.score = 0.0
        self.entry: tuple[Any, ...] | None = None
        self.stranded = False
        self.copied = False
        self.copying: tuple[Effect, ...] = ()
        self.holders: dict[int, Receipt] | None = None

    def set_pages(self, pages: bytes) -> None:
        """Cover other pages from now on."""
        self.pages = pages
        self.page_count = len(pages) // PAGE_ID_BYTES

    def touch(self, length: int, now: int) -> None:
        """Record a use by a prefix of `length` tokens, which may end inside the node."""
        if length < self.node.end:
            if self.marks is None:
                self.marks = {self.node.end: (self.touched, self.hits)}
            self.marks[length] = (now, self.marks.get(length, (0, 0))[1] + 1)
        elif self.marks is not None:
            self.marks[length] = (now, self.marks[length][1] + 1)
        self.touched = now
        self.hits += 1


class Node:
    """A run of whole pages, from its parent's end to its own.

    Attributes:
        id: never reused; a split leaves it on the lower half.
        edge: the elements of the run, as bytes.
        end: absolute length in tokens at the node's end.
        children: by the bytes of their first page.
        device, host: the values by component index, None for a tombstone.
        resumable: whether every required component is covered at the node's end, over device and host.
        nearest_boundary: the smallest `end` of a resumable node in this subtree, NO_BOUNDARY if there is none.
    """

    __slots__ = ("children", "device", "edge", "end", "host", "id", "nearest_boundary", "parent", "resumable")

    def __init__(self, node_id: NodeId, parent: Node | None, edge: bytes, end: int, component_count: int) -> None:
        self.id = node_id
        self.parent = parent
        self.edge = edge
        self.end = end
        self.children: dict[bytes, Node] = NO_CHILDREN
        self.device: list[Value | None] = [None] * component_count
        self.host: list[Value | None] = no_values(component_count)
        self.resumable = False
        self.nearest_boundary = NO_BOUNDARY

    def adopt(self, first_page: bytes, child: Node) -> None:
        """Hang a child here."""
        if self.children is NO_CHILDREN:
            self.children = {}
        self.children[first_page] = child

    def set_value(self, component: int, tier: Tier, value: Value | None) -> None:
        """Put a value, or a tombstone, in its place."""
        if tier is Tier.DEVICE:
            self.device[component] = value
            return
        if self.host is no_values(len(self.device)):
            self.host = [None] * len(self.device)
        self.host[component] = value

    @property
    def start(self) -> int:
        """Absolute length in tokens at the node's start."""
        return self.parent.end if self.parent is not None else 0

    def values(self, tier: Tier) -> list[Value | None]:
        """The values on one tier, by component index."""
        return self.host if tier else self.device

    def __repr__(self) -> str:
        return f"Node({self.id}, [{self.start}, {self.end}))"


# What a leaf has for children and a node without host values for those is shared and never changed; most nodes are both.
NO_CHILDREN: Final[dict[bytes, Node]] = {}
_NO_VALUES: Final[dict[int, list[Value | None]]] = {}


def no_values(component_count: int) -> list[Value | None]:
    """The one list of so many tombstones."""
    nothing = _NO_VALUES.get(component_count)
    if nothing is None:
        nothing = _NO_VALUES[component_count] = [None] * component_count
    return nothing


class Root(Node):
    """Where a namespace's keys begin: no tokens, no values, never locked."""

    __slots__ = ("name",)

    def __init__(self, name: tuple[str, bool], component_count: int) -> None:
        super().__init__(ROOT_ID, None, b"", 0, component_count)
        self.name = name
        self.resumable = True
