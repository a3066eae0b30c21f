"""Visits: what is known of the requests that used a text, by which their successors are foreseen.

A session is a text that requests go on from, one after the other. The last visit of a session hangs on its `Line`, which
outlives the nodes, so one that comes back after it was evicted is known, too. A place where sessions fork off has visits of its
own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.tuples import untracked

if TYPE_CHECKING:
    from unified_tree.line import Line

GONE_ON_SHARE: Final = 3
"""A request goes on from a session if it shares at least one part in so many of its text; else it forks off."""
MEAN_GAPS: Final = 4
"""About so many gaps count for their mean."""
FEATURES: Final = 7
BIN_BITS: Final = 5
BINS: Final = 24
UNJUDGED: Final = -1


def octave(number: i64) -> i64:
    """The bin of a count: 0 for what is unknown (-1), else 1, 2, 3, … for 0, 1, 2 to 3, …

    >>> octave(-1), octave(0), octave(1), octave(2), octave(3), octave(4)
    (0, 1, 2, 2, 3, 3)
    """
    number += 1
    found: i64 = 0
    while number > 0 and found < BINS - 1:
        number >>= 1
        found += 1
    return found


@mypyc_attr(acyclic=True)
class Visit:
    """One request's use of a session, or of a place where sessions fork off.

    Attributes:
        at: the tick of the tree's clock at which its request published last; until then, at which it arrived.
        start, end: the session's own text: from where it forked off another to where this request left it, in tokens.
        begin: how much of it the request shared.
        room: tokens that nobody keeps but this session.
        turns: how many visits it had before.
        gap: after how many ticks this one came; -1 for the first.
        gap_before: that of the visit before; -1 for the first two.
        mean_gap: a moving mean of the gaps up to this one.
        growth: by how many tokens it is longer than the one before was in the end, less than none if it is shorter; -1 for the
            first.
        features: what it is like: a bin below `BINS` for each, in `BIN_BITS`, the first one lowest.
        pace: how soon visits like it are answered, as far as was known when it was judged; judged: when that was, by what had
            been learned, or UNJUDGED.
        serial: its number there; entry: that in what recency would hold, which has `room` less what is `lent` of it.
        lent: tokens of it that places where others fork off have there, since they use them, too; of a place, those it has.
        is_fork: it used a place where sessions fork off.
        is_open: its request has not published anything yet; of a fork, and has left, so that the next one there counts as the
            same that tries again.
        is_running: its request has saved its last boundary, and something still locks the path there: the request, or a copy.
        by: the visit of the request that went on from it; None while nobody has, and for places where sessions fork off.
        recency_end: up to where its request would have hit if recency had evicted, as far as it is known to have that text.
        saves: lengths at which windows or states of the session were saved, the last of them, ascending.
    """

    __slots__ = (
        "at",
        "begin",
        "by",
        "end",
        "entry",
        "features",
        "gap",
        "gap_before",
        "growth",
        "is_fork",
        "is_open",
        "is_running",
        "judged",
        "lent",
        "mean_gap",
        "pace",
        "recency_end",
        "room",
        "saves",
        "serial",
        "start",
        "turns",
    )

    def __init__(self, at: int, start: int, end: int, before: Visit | None, *, is_fork: bool) -> None:
        self.at = at
        self.start = start
        self.begin = self.end = end
        self.is_fork = is_fork
        self.by: Visit | None = None
        self.is_open = True
        self.is_running = False
        self.saves: tuple[int, ...] = ()
        self.serial = self.entry = self.lent = 0
        self.recency_end = 0
        self.features: i64 = 0
        self.pace: i64 = 0
        self.judged: i64 = UNJUDGED
        if before is None:
            self.turns = 0
            self.gap = self.gap_before = self.growth = -1
            self.mean_gap = 0.0
            self.room = end - start
        else:
            self.start = before.start
            self.turns = before.turns + 1
            self.gap = at - before.at
            self.gap_before = before.gap
            weight = 1.0 / min(self.turns, MEAN_GAPS)
            self.mean_gap = before.mean_gap + weight * (self.gap - before.mean_gap)
            self.growth = end - before.end
            self.room = max(1, before.room + end - before.end)
        self._describe()

    @property
    def owns_from(self) -> int:
        """From where on its text is what only the session has."""
        return self.end - self.room

    def is_gone_on_from(self, length: int) -> bool:
        """Whether a request that shares so much of the text goes on from it, rather than forks off: it shares what the
        last one did, and no small part of the text.
        """
        is_same = self.is_open or length >= self.begin
        return is_same and GONE_ON_SHARE * (length - self.start) >= self.end - self.start

    def went_on(self, end: int, now: int) -> None:
        """The same request has published more."""
        self.at = now
        more = end - self.end
        self.end = end
        self.is_open = False
        self.room += more
        if self.turns:
            self.growth += more
        self._describe()

    def saved(self, length: int, most: int) -> bool:
        """A window or a state of the session was saved; `most` places are known at most. Whether that is new. Cost: O(most)."""
        before = self.saves
        if not before or length > before[-1]:
            self.saves = untracked((*before[1 if len(before) >= most else 0 :], length))
            return True
        if length in before:
            return False
        self.saves = untracked(tuple(sorted((*before, length)))[-most:])
        return self.saves != before

    def _describe(self) -> None:
        is_first = self.turns == 0
        features: i64 = 0 if is_first else octave(max(0, self.growth))
        features = features << BIN_BITS | octave(self.gap_before)
        features = features << BIN_BITS | (0 if is_first else octave(int(self.mean_gap)))
        features = features << BIN_BITS | octave(self.gap)
        features = features << BIN_BITS | octave(self.start)
        features = features << BIN_BITS | octave(max(0, self.end - self.start))
        self.features = features << BIN_BITS | octave(self.turns)
        self.judged = UNJUDGED


def latest(line: Line) -> Visit | None:
    """The last visit of the session whose text a line has; None if there was none. Cost: O(1) amortized."""
    visit = line.visit
    if visit is None or visit.by is None:
        return visit
    last: Visit = visit
    while (after := last.by) is not None:
        last = after
    line.visit = last
    return last


def behind(saves: tuple[int, ...], length: int) -> int:
    """How many of these lengths lie beyond one.

    >>> behind((64, 128, 192), 128)
    1
    """
    return sum([1 for at in saves if at > length])
