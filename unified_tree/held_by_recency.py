"""What recency would hold of sessions' texts, in a simulation beside the real order, by which that is judged.

A text that sessions share is there once, and was used last by whichever of them used it last. So a session's own text lies in
pieces: one in front of each place where others fork off, and the last one behind all of these, which only itself uses. Whoever
uses a text up to some length uses all in front of it. So of these pieces the one nearer to the beginning was never used
earlier, and what recency would hold of a text is a prefix of it.

Approximate where it is cheaper so: the text that a session leaves when it goes on from its middle is gone at once, and a
session that goes on does not renew the use of what it forked off from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from unified_tree.recency import Recency
from unified_tree.visit import Visit, latest

if TYPE_CHECKING:
    from unified_tree.line import Line

LINES: Final = 8
"""So many lines of one session, one forking off the other, are looked at for places where others fork off."""


class HeldByRecency:
    """The last visits of sessions, and of places where sessions fork off, up to some number of tokens.

    Args:
        size: how many visits are remembered.

    Attributes:
        pieces: all of them, by `Visit.entry`.
    """

    __slots__ = ("pieces",)

    def __init__(self, size: int) -> None:
        self.pieces = Recency(size)

    def entered(self, visit: Visit) -> None:
        """A session has a new visit. Cost: as `Recency.enter`."""
        visit.entry = self.pieces.enter(visit.room - visit.lent)

    def grew(self, visit: Visit) -> None:
        """It has so much text now. Cost: as `Recency.grew`."""
        self.pieces.grew(visit.entry, visit.room - visit.lent)

    def gone_on_from(self, line: Line, visit: Visit) -> i64:
        """A request goes on from a session's last visit, whose line this is: how much of its own text would be there.

        Cost: O(1), and O(listed_forks) where others fork off.
        """
        hit = self._used(line, visit, visit.end)
        self.pieces.answered(visit.entry)
        return hit

    def forked_off(self, line: Line, place: Visit) -> i64:
        """A request forks off a line at a place, whose last visit may be among the line's forks: how much of the line's own
        text up to there would be there. Cost: O(listed_forks).
        """
        owner = latest(line)
        if owner is None:
            return 0
        hit = self._used(line, owner, place.end)
        place.lent = max(0, place.end - owner.owns_from)
        place.entry = self.pieces.enter(place.lent)
        return hit

    def forgotten(self, line: Line, place: Visit) -> None:
        """A place is not among the line's forks any more: the session has its piece again. Cost: O(1)."""
        owner = latest(line)
        if owner is not None and place.lent:
            self.pieces.answered(place.entry)
            owner.lent = max(0, owner.lent - place.lent)
            place.lent = 0
            self.grew(owner)

    def _used(self, line: Line, owner: Visit, length: i64) -> i64:
        """All up to a length has the newest use now, and is out of the pieces that had it; how much of it was there."""
        at: i64 = owner.owns_from
        if length <= at:
            return 0
        hit: i64 = 0
        is_there = True
        deeper = owner
        for end, place in _lent_by(line, owner):
            if end > length:
                deeper = place
                break
            held = self.pieces.answered(place.entry)
            if is_there:
                hit += held
                is_there = held == place.lent
            at += place.lent
            place.lent = 0
        more = max(0, length - at)
        if is_there:
            hit += min(more, self.pieces.holds(deeper.entry))
        if deeper is owner:
            owner.lent = min(owner.room, max(owner.lent, length - owner.owns_from))
            self.grew(owner)
        else:
            deeper.lent = max(0, deeper.lent - more)
            self.pieces.grew(deeper.entry, deeper.lent)
        return hit


def _lent_by(line: Line | None, owner: Visit) -> list[tuple[int, Visit]]:
    """The places that have a piece of a session's text, by where they end."""
    found: list[tuple[int, Visit]] = []
    for _ in range(LINES):
        if line is None or latest(line) is not owner:
            break
        if line.forks is not None:
            found += [(end, place) for end, place in line.forks.items() if place.lent]
        line = line.parent
    found.sort(key=_end)
    return found


def _end(place: tuple[int, Visit]) -> int:
    return place[0]
