"""The parts of the tree: nodes, the values that components have at them, and the face of their locks.

A node is a run of whole pages. For every component it has at most one `Value` per tier. A missing value is a tombstone:
the node keeps its place and its other components. A value lists the page ids of a *suffix* of its node's pages: all of them
for `Path`, the last k for `Trailing`, one state saved at the node's end for `Point`.

Compiled, neither nodes nor values are containers to the garbage collector, so a full collection costs the same with a
million of them as with none. They refer to each other in cycles all the same, so these references are cut by hand: those
of a value when it is removed, of a node when it is deleted, and of all that is left when the tree itself goes.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

from unified_tree.declare.coverage import NO_LENGTH
from unified_tree.declare.owners import MARK_SHIFT
from unified_tree.inputs.arguments import INT64_BYTES
from unified_tree.native.chosen import with_item
from unified_tree.nodes.order import Ranked
from unified_tree.terms.tier import DEVICE, HOST, PAGE_ID_BYTES, ROOT_ID, NodeId, Tier

if TYPE_CHECKING:
    from unified_tree.nodes.children import ChildIndex, SiblingPlace
    from unified_tree.nodes.claim import Claim, Hold
    from unified_tree.nodes.effect import Effect
    from unified_tree.nodes.line import Eviction, Line

REPLAY_BOUNDARY: Final = 1 << 61
"""`Node.nearest_boundary` of a node under which one can only resume where the windows before are rebuilt."""


@mypyc_attr(acyclic=True)
class Value(Ranked):
    """The pages of one component at one node on one tier, with its lock count and its place in the eviction order.

    Attributes:
        pages: int64 page ids as bytes, the last `page_count` pages of the node.
        locks: for `Path` values one per receipt at this node's end and one per locked child; else one per receipt.
        children: for `Path` values, how many child nodes have this component on this tier.
        touched: the tree's clock at the last use; `created`: at creation.
        hits: matches that ended here, and those of evicted children.
        marks: uses that ended inside the node, {length: (touched, hits)}; a split gives each to the half it ended in.
        score: a float of the policy's own (the cost-aware policy keeps its rank here).
        policy_state: whatever else a policy keeps; see EvictionPolicy.
        stranded: no boundary needs it.
        spare: it is evicted right after stranded values. It is a window within a prompt, published at a length not in
            `Lease.save_at`, or a prompt's last state where one a grid step earlier is kept. It is spare until a request
            resumes from it.
        demoted: a later turn supersedes it, or a hint demoted it; until it is used again.
        holds: of hints that keep it; see Hold.
        copied: all its pages are on the other tier too.
        copying: the open transfers that copy it to the other tier, each different pages.
        locked_by: the receipts that lock this value, by serial number (all but `Path`, which counts).
        was_read: on host: whether any of it was copied back to device, since it is there.
        run_pages: of a required window: how many pages before the node's end are on device or host without a gap, those of
            nodes above included, up to as many as a window has. Kept on the device value, or without one on the host value.
    """

    __slots__ = (
        "children",
        "component",
        "copied",
        "copying",
        "created",
        "demoted",
        "hits",
        "holds",
        "locked_by",
        "locks",
        "marks",
        "node",
        "pages",
        "policy_state",
        "priority",
        "run_pages",
        "score",
        "spare",
        "stranded",
        "tier",
        "touched",
        "was_read",
    )

    def __init__(self, node: Node, component: int, tier: Tier, pages: bytes, now: int, priority: int) -> None:
        super().__init__()
        self.node = node
        self.component = component
        self.tier = tier
        self.pages = pages
        self.locks = 0
        self.children = 0
        self.touched = now
        self.created = now
        self.hits = 0
        self.priority = priority
        self.marks: dict[int, tuple[int, int]] | None = None
        self.score = 0.0
        self.stranded = False
        self.spare = False
        self.demoted = False
        self.holds: tuple[Hold, ...] = ()
        self.copied = False
        self.copying: tuple[Effect, ...] = ()
        self.locked_by: dict[int, Lock] | None = None
        self.run_pages = 0
        self.was_read = False
        self.policy_state: object = None

    @property
    def page_count(self) -> int:
        """How many pages."""
        return len(self.pages) // PAGE_ID_BYTES

    def touch(self, length: int, now: int, hits: int = 1) -> None:
        """Record a use by a prefix of `length` tokens, which may end inside the node; 0 hits for one by an insert."""
        if length < self.node.end:
            if self.marks is None:
                self.marks = {self.node.end: (self.touched, self.hits)}
            self.marks[length] = (now, self.marks.get(length, (0, 0))[1] + hits)
        elif self.marks is not None:
            self.marks[length] = (now, self.marks.get(length, (0, 0))[1] + hits)
        self.touched = now
        self.hits += hits


@mypyc_attr(acyclic=True, free_list_len=1)
class Lost:
    """A window or a state that a node's end had and has no more, on neither tier.

    Attributes:
        page_count: how many pages it had.
        next: what another component lost there; None for nothing.
    """

    __slots__ = ("component", "eviction", "next", "page_count")

    def __init__(self, component: int, page_count: int, eviction: Eviction, following: Lost | None) -> None:
        self.component = component
        self.page_count = page_count
        self.eviction = eviction
        self.next = following


@mypyc_attr(acyclic=True)
class Node:
    """A run of whole pages, from its parent's end to its own.

    Attributes:
        id: never reused; a split leaves it on the lower half.
        edge: the elements of the run, as bytes.
        end: absolute length in tokens at the node's end.
        root: the root of its namespace; a root has none.
        first_child, next_sibling, previous_sibling: the children as a list; no two begin with the same page.
        child_count: how many there are; `child_index`: what finds one among many, None for few.
        device, host: the values by component index, None for a tombstone.
        resumable: whether the node ends at a boundary, a length one can resume from: every required component is covered
            there, over device and host.
        nearest_boundary: the smallest `end` of a resumable node in this subtree; if there is none, REPLAY_BOUNDARY where one is
            so long that its windows can be rebuilt from the path, else NO_LENGTH.
        sibling_place: its place among its siblings by `nearest_boundary`, if its parent has an index.
        line: names its prefix for the memory of evictions; None without one.
        lost: windows and states that went from its end for good, one of each component, as a list; None for none.
        claim: of the sessions that alone have used it; None without one.
        is_dirty, cursor, again: bookkeeping under way; see Resumability.
    """

    __slots__ = (
        "again",
        "child_count",
        "child_index",
        "claim",
        "cursor",
        "device",
        "edge",
        "end",
        "first_child",
        "host",
        "id",
        "is_dirty",
        "line",
        "lost",
        "nearest_boundary",
        "next_sibling",
        "parent",
        "previous_sibling",
        "resumable",
        "root",
        "sibling_place",
    )

    def __init__(self, node_id: NodeId, parent: Node | None, edge: bytes, end: int, component_count: int) -> None:
        nothing = no_values(component_count)
        self.id = node_id
        self.parent = parent
        self.edge = edge
        self.end = end
        self.root: Root | None = parent if isinstance(parent, Root) or parent is None else parent.root
        self.first_child: Node | None = None
        self.next_sibling: Node | None = None
        self.previous_sibling: Node | None = None
        self.child_count = 0
        self.child_index: ChildIndex | None = None
        self.device: tuple[Value | None, ...] = nothing
        self.host: tuple[Value | None, ...] = nothing
        self.resumable = False
        self.nearest_boundary = NO_LENGTH
        self.sibling_place: SiblingPlace | None = None
        self.is_dirty = False
        self.cursor: Node | None = None
        self.again = False
        self.line: Line | None = None
        self.lost: Lost | None = None
        self.claim: Claim | None = None

    def set_value(self, component: int, tier: Tier, value: Value | None) -> None:
        """Put a value, or a tombstone, in its place. Cost: O(components)."""
        if tier is DEVICE:
            self.device = with_item(self.device, component, value)
        else:
            self.host = with_item(self.host, component, value)

    def lost_of(self, component: int) -> Lost | None:
        """What a component had at its end and has no more. Cost: O(components that lost one)."""
        lost = self.lost
        while lost is not None and lost.component != component:
            lost = lost.next
        return lost

    def note_lost(self, component: int, page_count: int, eviction: Eviction) -> None:
        """A component has lost so many pages up to the node's end; only the most that it lost are remembered."""
        before = None if self.lost is None else self.lost_of(component)
        if before is None:
            self.lost = Lost(component, page_count, eviction, self.lost)
        elif before.page_count < page_count:
            before.page_count, before.eviction = page_count, eviction

    def forget_lost(self, component: int) -> None:
        """A component has again what it had lost."""
        before: Lost | None = None
        lost = self.lost
        while lost is not None and lost.component != component:
            before, lost = lost, lost.next
        if lost is not None and before is None:
            self.lost = lost.next
        elif lost is not None and before is not None:
            before.next = lost.next

    @property
    def start(self) -> int:
        """Absolute length in tokens at the node's start."""
        return self.parent.end if self.parent is not None else 0

    def values(self, tier: Tier) -> tuple[Value | None, ...]:
        """The values on one tier, by component index."""
        return self.host if tier is HOST else self.device

    def children(self) -> Iterator[Node]:
        """The children, the youngest first. Do not add or remove any during the iteration."""
        child = self.first_child
        while child is not None:
            yield child
            child = child.next_sibling

    def __repr__(self) -> str:
        return f"Node({self.id}, [{self.start}, {self.end}))"


# What a node without values has for them is shared; most nodes have none on host.
_NO_VALUES: Final[dict[int, tuple[Value | None, ...]]] = {}


def no_values(component_count: int) -> tuple[Value | None, ...]:
    """The one tuple of so many tombstones."""
    nothing = _NO_VALUES.get(component_count)
    if nothing is None:
        nothing = _NO_VALUES[component_count] = (None,) * component_count
    return nothing


@mypyc_attr(acyclic=True)
class Root(Node):
    """Where a namespace's keys begin: no tokens, no values, never locked.

    Attributes:
        name: (namespace, whether its keys are bigrams).
        age: how many times all namespaces had been invalidated when it was created.
        is_retired: its namespace was invalidated.
        group: of its namespace, by index; 0 for one that no group names. See `declare.tenants`.
        owner_groups: the groups by owner, if it is the root of namespaces that share; see `declare.owners`.
    """

    __slots__ = ("age", "group", "is_retired", "name", "owner_groups")

    def __init__(
        self,
        name: tuple[str, bool],
        component_count: int,
        age: int,
        group: int = 0,
        owner_groups: list[int] | None = None,
    ) -> None:
        super().__init__(ROOT_ID, None, b"", 0, component_count)
        self.name = name
        self.age = age
        self.is_retired = False
        self.group = group
        self.owner_groups = owner_groups
        self.resumable = True


def group_of(node: Node) -> int:
    """The group of namespaces that a node's values count for: where namespaces share, that of its owner. Cost: O(1)."""
    root = node.root
    if root is None:
        return 0
    groups = root.owner_groups
    if groups is None:
        return root.group
    return groups[int.from_bytes(node.edge[:INT64_BYTES], sys.byteorder) >> MARK_SHIFT]


class Lock:
    """A lock on values, as far as these need to know it; see `Receipt`."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_released(self) -> bool:
        """Whether nothing is locked any more."""

    @abstractmethod
    def add(self, value: Value) -> None:
        """A split divided a locked value: its upper half is locked too."""

    @abstractmethod
    def release(self, component: Any = None) -> None:
        """Release one component, or all that is still locked."""


def window_values(node: Node, start: int, component: int, tier: Tier) -> list[Value]:
    """The values on one tier at the nodes from `node` up that end behind the token `start`, deepest first."""
    found: list[Value] = []
    at: Node | None = node
    while at is not None and at.parent is not None and at.end > start:
        value = at.values(tier)[component]
        if value is not None:
            found.append(value)
        at = at.parent
    return found


IDS_A_SHELF = 512


class NodeTable:
    """The nodes of one tree.

    Attributes:
        age: how often all namespaces were retired at once; a root created before the last time is retired.
    """

    __slots__ = ("_count", "_shelves", "age")

    def __init__(self) -> None:
        self.age = 0
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

    def is_retired(self, node: Node) -> bool:
        """Whether a node's namespace was invalidated, so that no key and no boundary finds it any more. Cost: O(1)."""
        root = node.root
        return root is None or root.is_retired or root.age < self.age

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
                    value.holds = ()
            if node.claim is not None:
                node.claim.node = None
            node.claim = None
            node.device = node.host = ()
            node.parent = node.first_child = node.next_sibling = node.previous_sibling = node.cursor = None
            node.child_index = node.sibling_place = node.root = None
        self._shelves = {}
        self._count = 0
