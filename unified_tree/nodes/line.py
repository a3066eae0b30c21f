"""Lines: names for prefixes that outlive their nodes.

A node's id says which prefix it ends only while the node lives. A `Line` names the prefixes of one text, as far as some node
ever had it. The first child of a node goes on along its parent's line, so a chat of many turns is one line; each other child
begins a line of its own, which forks off where its parent ended. Both halves of a split are on the line of the node. So
(line, length) names a prefix for ever, and a prefix has one name: that on the line that owns the length.

A `Ghost` is what is remembered of an evicted node. It hangs on the prefix behind which the node stood, whoever has that prefix
later; `memory.ghosts` keeps and forgets ghosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from unified_tree.terms.tier import Tier

MAX_NOTES: Final = 16
"""Lengths of one line at which something is noted, of each kind; the oldest note is forgotten."""
MAX_NAMES: Final = 8
"""Namespaces that a stretch names, those that came last."""


@mypyc_attr(acyclic=True)
class Stretch:
    """Tokens that some namespaces have behind some prefix.

    Attributes:
        above: the stretch behind which it stands; None for the one without tokens that all others are behind, and for one that
            is gone.
        edge: its tokens as bytes; `end`: where they end, in bytes from the front of the text.
        code: of its first page.
        below: those behind it, by their codes.
        names: of roots that had all of it, the last one last.
        is_gone: it was forgotten.
    """

    __slots__ = ("above", "below", "code", "edge", "end", "is_gone", "names")

    def __init__(self, above: Stretch | None, code: int, edge: bytes, end: i64) -> None:
        self.above = above
        self.code = code
        self.edge = edge
        self.end = end
        self.below: dict[int, Stretch] = {}
        self.names: list[tuple[str, bool]] = []
        self.is_gone = False

    @property
    def start(self) -> int:
        """Where its tokens begin, in bytes."""
        return self.end - len(self.edge)

    def note(self, name: tuple[str, bool]) -> None:
        """A root has all of it."""
        names = self.names
        if names and names[-1] == name:
            return
        if name in names:
            names.remove(name)
        elif len(names) >= MAX_NAMES:
            del names[0]
        names.append(name)


@mypyc_attr(acyclic=True)
class LostBoundaries:
    """Boundaries (lengths one can resume from) that were evicted and whose tokens came back without them.

    Attributes:
        first, last: the smallest and the greatest of these lengths.
        next: those of the line that were noted after them; None for the newest.
    """

    __slots__ = ("eviction", "first", "last", "next")

    def __init__(self, first: int, last: int, eviction: Eviction) -> None:
        self.first = first
        self.last = last
        self.eviction = eviction
        self.next: LostBoundaries | None = None


@mypyc_attr(acyclic=True)
class Line:
    """One text, and where it forks off another.

    Attributes:
        parent: the line whose text it shares up to `fork`; None for that of a root.
        fork: how many tokens are shared, -1 without a parent.
        end: how long the text is known to be; what comes next decides whether it goes on along this line.
        ghost: what was evicted of this very text, as a list from the front on (`Ghost.below`); None for nothing.
        forked: what was evicted where another text forks off, by its code (a hash of the prefix's length and the first page
            behind it); None for nothing.
        unsaved: why no state was saved where one was due, by length; None for nothing.
        lost: boundaries that were evicted and whose tokens came back without them, as a list from the oldest note on; None for
            none.
        policy_state: whatever a policy keeps that follows texts; see EvictionPolicy.
        stretch: where its text ends among those that several namespaces have; None if it is not there.
    """

    __slots__ = (
        "end",
        "fork",
        "forked",
        "ghost",
        "lost",
        "parent",
        "policy_state",
        "stretch",
        "unsaved",
    )

    def __init__(self, parent: Line | None, fork: int, end: int) -> None:
        self.parent = parent
        self.fork = fork
        self.end = end
        self.ghost: Ghost | None = None
        self.forked: dict[object, Ghost] | None = None
        self.unsaved: dict[int, str] | None = None
        self.lost: LostBoundaries | None = None
        self.policy_state: object = None
        self.stretch: Stretch | None = None

    def owner(self, length: int) -> Line:
        """The line that owns a prefix of this one. Cost: O(forks behind it)."""
        line = self
        while length <= line.fork:
            assert line.parent is not None
            line = line.parent
        return line

    @property
    def has_ghosts(self) -> bool:
        """Whether anything hangs here that was evicted."""
        return self.ghost is not None or self.forked is not None

    def hang(self, ghost: Ghost) -> None:
        """Add what was evicted of this very text: it stands before all of it that was. Cost: O(1)."""
        below = self.ghost
        if below is not None:
            assert ghost.start < below.start, "a leaf goes before its parent, and what comes back hangs no more"
            below.above = ghost
        ghost.below = below
        self.ghost = ghost

    def unhang(self, ghost: Ghost) -> None:
        """Remove what was evicted of this very text. Cost: O(1)."""
        above, below = ghost.above, ghost.below
        if above is None:
            self.ghost = below
        else:
            above.below = below
        if below is not None:
            below.above = above
        ghost.above = ghost.below = None

    def note_unsaved(self, length: int, reason: str) -> None:
        """Nothing was saved at a length where it was due."""
        if self.unsaved is None:
            self.unsaved = {}
        elif len(self.unsaved) >= MAX_NOTES:
            del self.unsaved[next(iter(self.unsaved))]
        self.unsaved[length] = reason

    def note_lost(self, first: int, last: int, eviction: Eviction) -> None:
        """Boundaries were evicted, those at lengths from `first` to `last`, whose tokens came back without them."""
        line: Line | None = self.owner(last)
        while line is not None and last >= first:
            line._note(first, last, eviction)
            last, line = min(last, line.fork), line.parent

    def _note(self, first: int, last: int, eviction: Eviction) -> None:
        """As `note_lost`, on this line alone; of one last length only the latest note stays. Cost: O(notes)."""
        count, lost = 0, self.lost
        newest: LostBoundaries | None = None
        same: LostBoundaries | None = None
        while lost is not None:
            if lost.last == last:
                same = lost
            newest = lost
            lost = lost.next
            count += 1
        if newest is None:
            self.lost = LostBoundaries(first, last, eviction)
            return
        if count >= MAX_NOTES:
            oldest = self.lost
            assert oldest is not None
            self.lost = oldest.next
            if same is oldest:
                same = None
        if same is None:
            newest.next = LostBoundaries(first, last, eviction)
        else:
            same.first, same.eviction = first, eviction

    def last_unsaved(self, after: int, up_to: int) -> str | None:
        """Why nothing was saved at the greatest length in (after, up_to] of which that is known; None if there is none."""
        line: Line | None = self
        while line is not None and up_to > after:
            found = [at for at in line.unsaved or () if max(after, line.fork) < at <= up_to]
            if found:
                assert line.unsaved is not None
                return line.unsaved[max(found)]
            up_to, line = min(up_to, line.fork), line.parent
        return None

    def last_lost(self, after: int, up_to: int) -> tuple[int, Eviction | None]:
        """The last boundary in (after, up_to] that was evicted while its tokens came back, and how; else (after, None)."""
        line: Line | None = self
        while line is not None and up_to > after:
            best = after
            found: Eviction | None = None
            lost = line.lost
            while lost is not None:
                end = min(lost.last, up_to)
                if end >= lost.first and end > best:
                    best, found = end, lost.eviction
                lost = lost.next
            if found is not None:
                return best, found
            up_to, line = min(up_to, line.fork), line.parent
        return after, None


@mypyc_attr(acyclic=True)
class RootLine(Line):
    """The line of a root.

    Attributes:
        name: the root's.
        is_live: the tree has the root.
    """

    __slots__ = ("is_live", "name")

    def __init__(self, name: tuple[str, bool]) -> None:
        super().__init__(None, -1, 0)
        self.name = name
        self.is_live = True


@mypyc_attr(acyclic=True, free_list_len=1)
class Eviction:
    """Why and when something went; one for all that one call evicted from one pool.

    Attributes:
        component: by index, whose pool was short.
        tier: of that pool.
        at_s: when, on the tree's clock.
        beneficiary: the namespace for which room was made; None if nobody said.
        evicted_pages: how many pages had left that pool before.
        urgency: the class of the first victim; see `Place`. reason: of its policy, by which it explains the choice.
        clock: the tree's logical clock then.
        share: with tenants the name of the victims' group, how much it held before, and its share, in units of the room; else
            None.
    """

    __slots__ = (
        "at_s",
        "beneficiary",
        "clock",
        "component",
        "evicted_pages",
        "reason",
        "share",
        "tier",
        "urgency",
    )

    def __init__(
        self,
        component: int,
        tier: Tier,
        at_s: float,
        beneficiary: str | None,
        evicted_pages: int,
        urgency: int,
        reason: object,
        clock: int,
    ) -> None:
        self.component = component
        self.tier = tier
        self.at_s = at_s
        self.beneficiary = beneficiary
        self.evicted_pages = evicted_pages
        self.urgency = urgency
        self.reason = reason
        self.clock = clock
        self.share: tuple[str, int, int] | None = None


@mypyc_attr(acyclic=True)
class Ghost:
    """A node that was evicted.

    Attributes:
        anchor: the line on which it hangs; None for one that is gone.
        is_fork: it hangs there by its code, because the line goes on with other tokens.
        code: of its first page; None while it neither `is_fork` nor has faded.
        line: the line of the node.
        start, end: as of the node, in tokens.
        edge: the node's tokens as bytes; None for one that has faded.
        eviction: why it went; None if its namespace was invalidated.
        boundary_from: a request could have resumed from this length and all behind it while all was there.
        reached: up to which length the prompt agrees whose trail it is on.
        above, below: its neighbours on its line.
        older, newer: its neighbours in its queue.
    """

    __slots__ = (
        "above",
        "anchor",
        "below",
        "boundary_from",
        "code",
        "edge",
        "end",
        "eviction",
        "is_fork",
        "line",
        "newer",
        "older",
        "reached",
        "start",
    )

    def __init__(self, line: Line, start: i64, end: i64, edge: bytes, eviction: Eviction | None, boundary_from: i64) -> None:
        self.anchor: Line | None = None
        self.is_fork = False
        self.code: object = None
        self.reached: i64 = 0
        self.line = line
        self.start = start
        self.end = end
        self.edge: bytes | None = edge
        self.eviction = eviction
        self.boundary_from = boundary_from
        self.above: Ghost | None = None
        self.below: Ghost | None = None
        self.older: Ghost | None = None
        self.newer: Ghost | None = None

    def hang(self) -> None:
        """Hang on the line that has the prefix behind which it stood: before all that hangs there, or, where `is_fork` says so,
        to be found by its code. Cost: O(forks behind it).
        """
        line, is_fork = self.line, False
        while self.start <= line.fork:
            is_fork = self.start == line.fork
            assert line.parent is not None
            line = line.parent
        self.anchor, self.is_fork = line, is_fork
        if not is_fork:
            line.hang(self)
