"""An order that is always up to date: the next victim is first at every moment, and no call defers work to another.

An intrusive treap: each entry has links to its children and its parent in the search tree, and a random weight that keeps the
tree balanced. Adding and removing an entry cost O(log n) expected, and O(1) at either end, where a value that was just used
goes. Nothing is allocated. Entries are not tracked by the garbage collector, so an order of a million costs it nothing.

Rejected: a sorted list with lazy correction (one eviction then pays for all hits since the last), a heap (cannot move or remove
an entry without leaving a stale one), and linked lists by use (cannot insert a node that inherits an older recency from its
last child).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final, NamedTuple

from mypy_extensions import i64, mypyc_attr

FIRST_WEIGHT = 0x2545F491
MASK = 0xFFFFFFFF


class Place(NamedTuple):
    """The sort key of an entry, most significant first. The smallest place is evicted first."""

    urgency: int
    rank: float
    second_rank: float
    depth: int
    serial: int


@mypyc_attr(acyclic=True)
class Ranked:
    """Base class of the entries of an order.

    Attributes:
        is_placed: whether it stands in one now.
        urgency, rank, second_rank, depth, serial: its place there; see Place. They change only while it is in no order.
        before, behind, above: its neighbours in the search tree.
        weight: random; no entry is lighter than the one above it.
    """

    __slots__ = ("above", "before", "behind", "depth", "is_placed", "rank", "second_rank", "serial", "urgency", "weight")

    def __init__(self) -> None:
        self.is_placed = False
        self.urgency = 0
        self.rank = 0.0
        self.second_rank = 0.0
        self.depth = 0
        self.serial = 0
        self.weight = 0
        self.before: Ranked | None = None
        self.behind: Ranked | None = None
        self.above: Ranked | None = None

    def leave_order(self) -> None:
        """Stand in no order; the caller clears the one that it may stand in."""
        self.is_placed = False
        self.before = self.behind = self.above = None

    @property
    def place(self) -> Place:
        """Its current place, or its last one."""
        return Place(self.urgency, self.rank, self.second_rank, self.depth, self.serial)


def precedes(one: Ranked, other: Ranked) -> bool:
    """Whether `one` goes before `other`. Serial numbers differ, so one of two always does."""
    if one.urgency != other.urgency:
        return one.urgency < other.urgency
    if one.rank != other.rank:
        return one.rank < other.rank
    if one.second_rank != other.second_rank:
        return one.second_rank < other.second_rank
    if one.depth != other.depth:
        return one.depth < other.depth
    return one.serial < other.serial


class Order:
    """Entries by their places.

    Attributes:
        first, last: the ends; None where it is empty.
        count: how many entries.
    """

    __slots__ = ("_root", "_seed", "_serial", "count", "first", "last")

    def __init__(self) -> None:
        self._root: Ranked | None = None
        self._seed: i64 = FIRST_WEIGHT
        self._serial = 0
        self.first: Ranked | None = None
        self.last: Ranked | None = None
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Forget all entries, each of which must `leave_order`."""
        self._root = self.first = self.last = None
        self.count = 0

    def add(self, entry: Ranked, urgency: int, rank: float, second_rank: float, depth: int) -> None:
        """Add an entry that is in no order. Equal entries stay in insertion order.

        Cost: O(log n) expected, O(1) at either end.
        """
        assert not entry.is_placed
        if not entry.serial:  # an entry that comes back stands where it stood, so that a walk in steps does not meet it again
            self._serial += 1
            entry.serial = self._serial
        entry.urgency, entry.rank, entry.second_rank, entry.depth = urgency, rank, second_rank, depth
        seed = self._seed  # xorshift, Marsaglia 2003
        seed ^= (seed << 13) & MASK
        seed ^= seed >> 17
        seed ^= (seed << 5) & MASK
        self._seed = seed
        entry.weight = int(seed)
        entry.is_placed = True
        self.count += 1
        last, first = self.last, self.first
        if last is None or first is None:
            self._root = self.first = self.last = entry
            return
        if precedes(last, entry):
            last.behind = entry
            entry.above = last
            self.last = entry
        elif precedes(entry, first):
            first.before = entry
            entry.above = first
            self.first = entry
        else:
            self._hang(entry)
        self._rise(entry)

    def _hang(self, entry: Ranked) -> None:
        """Link a new entry below the one where a search for it ends."""
        at = self._root
        while at is not None:
            if precedes(entry, at):
                if at.before is None:
                    at.before = entry
                    break
                at = at.before
            else:
                if at.behind is None:
                    at.behind = entry
                    break
                at = at.behind
        entry.above = at

    def _rise(self, entry: Ranked) -> None:
        """Rotate an entry up past heavier ones."""
        above = entry.above
        while above is not None and entry.weight < above.weight:
            top = above.above
            if above.before is entry:
                inner = entry.behind
                above.before = inner
                entry.behind = above
            else:
                inner = entry.before
                above.behind = inner
                entry.before = above
            if inner is not None:
                inner.above = above
            above.above = entry
            self._replace_child(top, above, entry)
            above = top

    def _replace_child(self, top: Ranked | None, old: Ranked, new: Ranked | None) -> None:
        """Replace the child `old` of `top` by `new`."""
        if top is None:
            self._root = new
        elif top.before is old:
            top.before = new
        else:
            top.behind = new
        if new is not None:
            new.above = top

    def discard(self, entry: Ranked) -> None:
        """Remove an entry, if it is present. Cost: O(1) expected."""
        if not entry.is_placed:
            return
        if self.first is entry:
            self.first = following(entry)
        if self.last is entry:
            self.last = preceding(entry)
        top, old = entry.above, entry
        before, behind = entry.before, entry.behind
        # What hung below it is merged, the lighter of the two sides on top at each step.
        joint: Ranked | None = None
        while before is not None and behind is not None:
            if before.weight < behind.weight:
                lighter, before = before, before.behind
            else:
                lighter, behind = behind, behind.before
            self._join(joint, top, old, lighter)
            joint = lighter
        self._join(joint, top, old, before if before is not None else behind)
        entry.before = entry.behind = entry.above = None
        entry.is_placed = False
        self.count -= 1

    def _join(self, joint: Ranked | None, top: Ranked | None, old: Ranked, part: Ranked | None) -> None:
        """Link the next part of a merge below the last one, or where the removed entry was."""
        if joint is None:
            self._replace_child(top, old, part)
        elif part is None:
            # the side that `joint` came from goes on by itself; the other side has ended
            return
        elif precedes(part, joint):
            joint.before = part
            part.above = joint
        else:
            joint.behind = part
            part.above = joint

    def first_from(self, urgency: int, rank: float, second_rank: float = -inf) -> Ranked | None:
        """The first entry of at least this urgency, rank and second rank, the former ones first. Cost: O(log n) expected."""
        at, found = self._root, None
        while at is not None:
            if at.urgency != urgency:
                is_before = at.urgency < urgency
            elif at.rank != rank:
                is_before = at.rank < rank
            else:
                is_before = at.second_rank < second_rank
            if is_before:
                at = at.behind
            else:
                found = at
                at = at.before
        return found

    def last_up_to(self, urgency: int, rank: float) -> Ranked | None:
        """The last entry of at most this urgency and rank. Cost: O(log n) expected."""
        at, found = self._root, None
        while at is not None:
            if at.urgency > urgency or (at.urgency == urgency and at.rank > rank):
                at = at.before
            else:
                found = at
                at = at.behind
        return found

    def __iter__(self) -> Iterator[Ranked]:
        at = self.first
        while at is not None:
            yield at
            at = following(at)


def following(entry: Ranked) -> Ranked | None:
    """The next entry. Cost: O(1) amortized over a walk, O(log n) expected."""
    at = entry.behind
    if at is not None:
        while at.before is not None:
            at = at.before
        return at
    below, at = entry, entry.above
    while at is not None and at.behind is below:
        below, at = at, at.above
    return at


def preceding(entry: Ranked) -> Ranked | None:
    """The previous entry. Cost: as `following`."""
    at = entry.before
    if at is not None:
        while at.behind is not None:
            at = at.behind
        return at
    below, at = entry, entry.above
    while at is not None and at.before is below:
        below, at = at, at.above
    return at


STRANDED: Final = 0
"""No boundary (a length one can resume from) needs it."""
SPARE: Final = 1
"""Only a branch in the middle of a prompt would need it; see `UnifiedTree.insert`."""
LEFT: Final = 2
"""Only an ended session could go on from it, a later turn supersedes it, or a hint demoted it."""
COPIED: Final = 3
"""The other tier has it, too; only where a pool evicts such values first."""
NEEDED: Final = 4
KEPT: Final = 5
"""A hint retains it: it goes after all others."""
URGENCIES: Final = 6
