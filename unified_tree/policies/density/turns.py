"""Turns: what is known of the requests that went on from one another, by which the next one is foreseen.

A session is a text that requests go on from, one after the other; each of them is a turn. A request that shares only the
beginning of a session's text forks off at a place, which has uses of its own. The last turn of a session hangs on its `Line`,
which outlives the nodes. So a session that comes back after its text was evicted is known, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from unified_tree.nodes.line import Line

GONE_ON_SHARE: Final = 3
"""A request goes on from a session if it shares at least one part in so many of its text; else it forks off."""
UNSURE: Final = 0.5
FEATURES: Final = 5
BIN_BITS: Final = 5
BINS: Final = 24
UNJUDGED: Final = -1
PARTS: Final = 8
SURE: Final = 4
"""So many turns are thought to have been shared whole before any was."""
LATELY: Final = 256
"""After about so many turns, first or later ones, what is known of them counts half."""
USES_OCTAVES: Final = 16
"""Of a place's uses; the last one has the rest."""
LOST: Final = -1
FAR: Final = 1 << 62
LEAST_SHARE: Final = 1 / 64
"""A text that is hardly ever shared is worth so much of its session, at least."""


def octave(number: i64) -> i64:
    """The bin of a count: 0 for what is unknown (-1), else 1, 2, 3, … for 0, 1 to 2, 3 to 6, …

    >>> octave(-1), octave(0), octave(1), octave(2), octave(3)
    (0, 1, 2, 2, 3)
    """
    number += 1
    found: i64 = 0
    while number > 0 and found < BINS - 1:
        number >>= 1
        found += 1
    return found


@mypyc_attr(acyclic=True)
class Turn:
    """One request of a session.

    Attributes:
        at: the tick of the tree's clock at which it published last; until then, at which it arrived.
        start, end: the session's own text: from where it forked off another to where this request left it, in tokens.
        begin: up to where the request shared it; it added what is behind that.
        begin_before, end_before: `begin` and `end` of the turn before it; -1 and 0 without one.
        turns: how many the session had before.
        gap, gap_before: after how many ticks this one came, and the one before it; -1 where there was none.
        features: what it is like: a bin below `BINS` of each figure, in `BIN_BITS`, the first one lowest.
        group: the group of turns that are answered about as often, when it was looked up last (`judged`: see `Survival`).
        is_open: it has not published anything yet.
        by: the turn that went on from it; None while there is none.
        saved_to: the longest boundary that was saved of the session; 0 for none.
    """

    __slots__ = (
        "at",
        "begin",
        "begin_before",
        "by",
        "end",
        "end_before",
        "features",
        "gap",
        "gap_before",
        "group",
        "is_open",
        "judged",
        "saved_to",
        "start",
        "turns",
    )

    def __init__(self, at: int, start: int, end: int, before: Turn | None) -> None:
        self.at = at
        self.start = start
        self.begin = self.end = end
        self.by: Turn | None = None
        self.is_open = True
        self.saved_to = 0
        self.features: i64 = 0
        self.group: i64 = 0
        self.judged: i64 = UNJUDGED
        if before is None:
            self.turns = 0
            self.begin_before, self.end_before = -1, 0
            self.gap = self.gap_before = -1
        else:
            self.start = before.start
            self.begin_before, self.end_before = before.begin, before.end
            self.turns = before.turns + 1
            self.gap = at - before.at
            self.gap_before = before.gap
        self._describe()

    def is_gone_on_from(self, length: int) -> bool:
        """Whether a request that shares so much of the text goes on from it, rather than forks off: it shares what the last
        one did, and no small part of the text.
        """
        is_same = self.is_open or length >= self.begin
        return is_same and GONE_ON_SHARE * (length - self.start) >= self.end - self.start

    def shares(self, length: int) -> None:
        """Its request shares the text up to there, as is seen where evicted text comes back."""
        self.begin = max(self.begin, length)

    def went_on(self, end: int, now: int) -> None:
        """Its request has published more."""
        self.at = now
        self.is_open = False
        self.end = end
        self._describe()

    def _describe(self) -> None:
        features: i64 = octave(self.gap_before)
        features = features << BIN_BITS | octave(self.start)
        features = features << BIN_BITS | octave(self.gap)
        features = features << BIN_BITS | octave(max(0, self.end - self.start))
        self.features = features << BIN_BITS | octave(self.turns)
        self.judged = UNJUDGED


@mypyc_attr(acyclic=True)
class Place:
    """Where requests fork off a text.

    Attributes:
        uses: how many did.
        first, last: the ticks of the first and the last use.
        is_open: the request of the last use has left, and has published nothing: the next one counts as the same that tries
            again.
    """

    __slots__ = ("first", "is_open", "last", "uses")

    def __init__(self, now: int) -> None:
        self.uses = 0
        self.first = self.last = now
        self.is_open = False

    def used(self, now: int) -> bool:
        """A request forks off here. Returns False if the last one tries again, which counts as the same."""
        if self.is_open:
            self.is_open = False
            return False
        self.uses += 1
        self.last = now
        return True


def _part(length: i64, begin: i64, end: i64) -> i64:
    """In which part of [begin, end) a prefix ends, from 1 on; 0 for none of it."""
    if length <= begin:
        return 0
    return min(PARTS, 1 + (PARTS * (length - begin) - 1) // max(1, end - begin))


class Reach:
    """How far requests share what the turn before them added.

    The next request of a chat shares all of that; where thoughts are dropped, its first part; a question about a document, or
    behind a system prompt, nothing. So the text behind that is worth less than the session. Learned apart for first turns and
    later ones.
    """

    def __init__(self) -> None:
        self._counts = [[0] * PARTS + [SURE] for _ in range(2)]
        self._shares = [[1.0] * PARTS for _ in range(2)]

    def note(self, turn: Turn) -> None:
        """A turn is over: how far it shared what the one before had added. Cost: O(PARTS)."""
        if not turn.turns:
            return
        is_later = min(1, turn.turns - 1)
        counts = self._counts[is_later]
        counts[_part(turn.begin, turn.begin_before, turn.end_before)] += 1
        if sum(counts) > LATELY:
            for i in range(PARTS + 1):
                counts[i] >>= 1
        total, sharing = sum(counts), 0
        shares = self._shares[is_later]
        for i in range(PARTS, 0, -1):
            sharing += counts[i]
            shares[i - 1] = max(LEAST_SHARE, sharing / total)

    def share(self, turn: Turn, start: i64, end: i64) -> float:
        """How often the tokens of [start, end) are used in the mean, as a share of how often the session goes on.
        Cost: O(PARTS).
        """
        begin, size = i64(turn.begin), max(i64(1), i64(turn.end) - i64(turn.begin))
        if end <= begin:
            return 1.0
        shared = float(max(i64(0), begin - start))
        shares = self._shares[min(1, turn.turns)]
        for i in range(PARTS):
            last = begin + size * (i + 1) // PARTS if i < PARTS - 1 else max(end, begin + size)
            overlap = min(end, last) - max(start, begin + size * i // PARTS)
            if overlap > 0:
                shared += float(overlap) * shares[i]
        return shared / float(end - start)


def rate_of_place(uses: float, time: float, age: float, usual: float) -> float:
    """The rate at which a place is used that was used so often in so many ticks, and not for `age`.

    The true rate is not known exactly. So this is the mean of a Gamma distribution of rates, which falls while no request comes
    (Greenwood and Yule, 1920).

    Args:
        usual: the age at which values go, since without a use nothing else is known of time.
    """
    return (uses + UNSURE) / (time + age + usual + 1.0)


def octave_of_uses(uses: int) -> int:
    """1, 2, 3, … for 1, 2 to 3, 4 to 7, … uses of a place; the last octave has no upper end."""
    return min(USES_OCTAVES - 1, uses.bit_length())


class Places:
    """The share of places that are used again, by the octave of their uses: most that were used once never are."""

    def __init__(self) -> None:
        self._came = [1.0] * USES_OCTAVES
        self._again = [1.0] * USES_OCTAVES

    def note(self, uses: int) -> None:
        """A place has had that many uses now. Cost: O(1)."""
        if uses > 1:
            self._again[octave_of_uses(uses - 1)] += 1.0
        octave = octave_of_uses(uses)
        self._came[octave] += 1.0
        if self._came[octave] > LATELY:
            self._came[octave] /= 2
            self._again[octave] /= 2

    def rate(self, place: Place, age: float, usual: float) -> float:
        """The rate of a place that was not used for `age` ticks: `rate_of_place`, times the share of such places that are
        used again. Cost: O(1).

        Args:
            usual: see `rate_of_place`.
        """
        octave = octave_of_uses(place.uses)
        time = place.uses * (place.last - place.first) / max(1, place.uses - 1)
        return self._again[octave] / self._came[octave] * rate_of_place(place.uses, time, age, usual)


@mypyc_attr(acyclic=True)
class Stair:
    """How far a text was used. Those of a text are linked, so that compiled code makes no numbers into objects.

    Attributes:
        end: in tokens; it begins where the one before ends.
        use: the number of its last use.
        next: the one behind it, which is longer and older; None for the last.
    """

    __slots__ = ("end", "next", "use")

    def __init__(self, end: i64, use: i64, following: Stair | None) -> None:
        self.end = end
        self.use = use
        self.next = following


@mypyc_attr(acyclic=True)
class Save:
    """A boundary of a text, or the end of what one behind a fork needs before it. Those of a text are linked, as stairs are.

    Attributes:
        length: in tokens.
        use: its last use; `LOST` if recency has not saved it.
        short: its windows have so many tokens less; negative for more.
        is_saved: whether it is a boundary.
        below, above: of those that overlap and were used later, the end of the nearest below, and the length and `short` of
            the nearest above.
        next: the one behind it; None for the last.
    """

    __slots__ = ("above", "below", "is_saved", "length", "next", "short", "use")

    def __init__(self, length: i64, use: i64, short: i64, is_saved: bool, following: Save | None) -> None:
        self.length = length
        self.use = use
        self.short = short
        self.is_saved = is_saved
        self.below: i64 = 0
        self.above: i64 = FAR
        self.next = following


@mypyc_attr(acyclic=True)
class Session:
    """What a line has of the learned order: `Line.policy_state`.

    Attributes:
        turn: the last turn of the session that has the line's text; None if there was none.
        places: by length, those of the last uses; None for none.
        saves: the boundaries that recency might hold, the one used last first; None for none.
        stairs: up to where the text was used, and by which use, the longest and oldest last; None for nowhere.
    """

    __slots__ = ("places", "saves", "stairs", "turn")

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self.places: dict[int, Place] | None = None
        self.saves: Save | None = None
        self.stairs: Stair | None = None


def session_of(line: Line) -> Session:
    """The session of a line, from now on if it has none."""
    session = line.policy_state
    if isinstance(session, Session):
        return session
    line.policy_state = session = Session()
    return session


def latest(line: Line) -> Turn | None:
    """The last turn of the session whose text a line has; None if there was none. Cost: O(1) amortized."""
    session = line.policy_state
    if not isinstance(session, Session):
        return None
    turn = session.turn
    if turn is None or turn.by is None:
        return turn
    last: Turn = turn
    while (after := last.by) is not None:
        last = after
    session.turn = last
    return last
