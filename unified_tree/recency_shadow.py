"""A shadow cache: what recency would hold of all texts, windows and states, by which the learned order is judged.

A use of a text is a use of all of it from its beginning, so recency holds a prefix of each text. Each line knows up to where
its text was used by which use, as stairs: the longer, the earlier. Each use has an amount in a ring: the tokens that nobody has
used since. Recency evicts the oldest use first, so what it holds is a number: the first use that is still there.

Windows and states are uses of one boundary each in a ring of their own. What recency would resume from is the longest of them
that it holds, within the text that it holds. Where no window or state was ever lost, only the text counts. Where the pools
share one budget, texts and boundaries lie in one ring, and a boundary has as much as the tokens in whose place it lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from unified_tree.tuples import untracked
from unified_tree.turns import Session, session_of

if TYPE_CHECKING:
    from unified_tree.line import Line
    from unified_tree.settings import TreeSettings

UNBOUNDED: Final = 1 << 62
FEWER: Final = 0.001
"""A trial of the learned order ends when it has hit so many fewer of the tokens that came than recency would have."""
FADES: Final = 512
"""What came before so many of the last requests counts half."""
FIRST_WAIT: Final = 64
"""For so many requests recency decides after a trial, and twice as many after each further one that brought nothing."""
TRIED_AGAIN: Final = 0.5
"""A further trial begins with this share of that loss."""


class Ring:
    """Amounts by their last use; holds those used last, up to its room.

    Args:
        size: how many uses are remembered.

    Attributes:
        held: the sum of what it holds.
    """

    __slots__ = ("_amounts", "_first", "_next", "_room", "_size", "held")

    def __init__(self, size: int) -> None:
        self._size: i64 = size
        self._amounts = [0] * size
        self._next: i64 = 0
        self._first: i64 = 0  # the oldest use that something is left of
        self._room: i64 = UNBOUNDED
        self.held: i64 = 0

    @property
    def is_bounded(self) -> bool:
        """Whether it is known for how much there is room."""
        return self._room < UNBOUNDED

    @property
    def room(self) -> i64:
        """For how much there is room."""
        return self._room

    def has_room_for(self, amount: i64) -> None:
        """There is room for so much from now on. Cost: O(1), amortized over uses."""
        self._room = amount
        self._evict()

    def use(self) -> i64:
        """The number of the next use, which has nothing yet. Cost: O(1)."""
        use = self._next
        self._next += 1
        slot = use % self._size
        if use - self._size >= self._first:
            self.held -= i64(self._amounts[slot])
            self._first = use - self._size + 1
        self._amounts[slot] = 0
        return use

    def add(self, use: i64, amount: i64) -> None:
        """A use has so much more. Cost: O(1), amortized over uses."""
        if use >= self._first:
            slot = use % self._size
            self._amounts[slot] += int(amount)
            self.held += amount
            self._evict()

    def take(self, use: i64, amount: i64) -> i64:
        """A later use has so much of this one's; how much of that is held. Cost: O(1)."""
        there = self.holds(use, amount)
        if there > 0:
            self._amounts[use % self._size] -= int(there)
            self.held -= there
        return there

    def holds(self, use: i64, amount: i64) -> i64:
        """How much it holds of so much of a use. Cost: O(1)."""
        return min(amount, i64(self._amounts[use % self._size])) if use >= self._first else 0

    def _evict(self) -> None:
        while self.held > self._room and self._first < self._next:
            slot = self._first % self._size
            there: i64 = self._amounts[slot]
            over = self.held - self._room
            if there > over:
                self._amounts[slot] = int(there - over)
                self.held -= over
                return
            self.held -= there
            self._first += 1


class RecencyShadow:
    """What recency would hold, and whether it would hit more.

    Args:
        is_gated: whether windows or states are required.

    Attributes:
        texts: tokens of text; `boundaries`: windows and states, one each, or the same ring.
        is_ahead: whether recency would have hit more, and decides.
        lost_boundaries: of one budget, whether a window or a state that was needed was ever lost.
        by_recency: tokens that recency would have hit, of all that came.
        lead: tokens that were hit in this trial beyond those that recency would have hit; came: all tokens that came lately.
    """

    def __init__(self, settings: TreeSettings, *, is_gated: bool) -> None:
        self._settings = settings
        self._is_gated = is_gated
        self.texts = Ring(2 * settings.remembered_turns)
        self.boundaries = Ring(2 * settings.remembered_turns)
        self._boundary_amount: i64 = 1
        self.is_ahead = self.lost_boundaries = False
        self.by_recency = 0
        self.lead = self.came = 0.0
        self._arrivals = 0
        self._wait = FIRST_WAIT
        self._tried_again_at = 0

    def share(self, boundary_tokens: int) -> None:
        """Texts and boundaries share one budget from the start, in which a boundary takes the room of so many tokens."""
        self.boundaries = self.texts
        self._boundary_amount = boundary_tokens

    def arrived(self, line: Line, length: int, hit: int) -> None:
        """A request has come whose text is known up to some length, and hits so much. Cost: O(lines from the root), at most
        the setting `cost_steps`, times O(listed_uses).
        """
        text = self._used(line, length, self.texts.use(), 0)
        would = min(text, hit)
        if self._counts_boundaries:
            would = self._resumable(line, text)
            if hit > would:  # recency has computed it anew, and saved it again
                self._saved(session_of(line.owner(hit)), hit)
        self._arrivals += 1
        self.by_recency += would
        self._compare(length, hit - would)
        if self._arrivals % FADES == 0:
            self.lead /= 2
            self.came /= 2

    def grew(self, line: Line, start: int, end: int, use: int) -> int:
        """A text has grown in the tree; recency may have had it, or a part. Returns the use that has it. Cost: as `arrived`."""
        if self.texts.holds(use, 1) == 0:
            use = int(self.texts.use())
        text = self._used(line, end, use, 0)
        missed = 0
        if text > start:
            missed = max(0, self._resumable(line, text) - start) if self._counts_boundaries else text - start
        self.by_recency += missed
        self._compare(end - start, -missed)
        return use

    def saved(self, line: Line, length: int) -> None:
        """A window or a state was saved or used. Cost: O(1)."""
        if self._is_gated:
            self._saved(session_of(line), length)

    def unsaved(self, line: Line, length: int) -> None:
        """It goes before all others, by any order. Cost: O(1)."""
        session = line.policy_state
        if self._is_gated and isinstance(session, Session) and session.saves is not None:
            use = session.saves.pop(length, None)
            if use is not None:
                self.boundaries.take(use, self._boundary_amount)

    @property
    def _counts_boundaries(self) -> bool:
        """Whether recency may have lost windows or states."""
        return self._is_gated and self.boundaries.is_bounded and (self.lost_boundaries or self._boundary_amount == 1)

    def _compare(self, came: int, lead: int) -> None:
        """So many tokens came, of which so many more were hit than by recency."""
        self.came += came
        self.lead += lead
        enough = FEWER * self.came
        if self.is_ahead:
            if self._arrivals >= self._tried_again_at:
                self.is_ahead = False
                self.lead = -TRIED_AGAIN * enough
        elif self.lead < -enough:
            self.is_ahead = True
            self._tried_again_at = self._arrivals + self._wait
            self._wait *= 2
        elif self.lead > enough:
            self._wait = FIRST_WAIT

    def _used(self, line: Line, end: int, use: i64, steps: int) -> int:
        """All of a text up to `end` is used; how far recency holds it, from its beginning."""
        start = max(0, line.fork)
        above = start
        if line.parent is not None and steps < self._settings.cost_steps:
            above = self._used(line.parent, min(start, end), use, steps + 1)
        session = session_of(line)
        held = at = start
        left: list[int] = [end, int(use)]
        stairs = session.stairs
        for i in range(0, len(stairs), 2):
            last, earlier = stairs[i], stairs[i + 1]
            if at < end:
                amount = min(last, end) - at
                there = self.texts.take(earlier, amount)
                if held == at:
                    held += int(there)
            if last > end:
                left.append(last)
                left.append(earlier)
            at = max(at, last)
        if end > start:
            self.texts.add(use, end - start)
            if len(left) > 2 * self._settings.listed_uses:  # the last but one is forgotten: the last has what it had
                last, earlier = left[-4:-2]
                before = left[-6] if len(left) > 4 else start
                self.texts.add(left[-1], self.texts.take(earlier, last - before))
                del left[-4:-2]
            session.stairs = untracked(tuple(left))
        return held if above >= start else above

    def _resumable(self, line: Line | None, length: int) -> int:
        """The longest window or state that recency holds, up to a length; it is used."""
        for _ in range(self._settings.cost_steps):
            if line is None:
                break
            session = line.policy_state
            if isinstance(session, Session) and session.saves is not None:
                found = 0
                for at, use in session.saves.items():
                    if found < at <= length and self.boundaries.holds(use, 1):
                        found = at
                if found:
                    self._saved(session, found)
                    return found
            length = min(length, max(0, line.fork))
            line = line.parent
        return 0

    def _saved(self, session: Session, length: int) -> None:
        saves = session.saves
        if saves is None:
            saves = session.saves = {}
        before = saves.pop(length, None)
        if before is None and len(saves) >= self._settings.listed_saves:
            before = saves.pop(next(iter(saves)))
        if before is not None:
            self.boundaries.take(before, self._boundary_amount)
        use = self.boundaries.use()
        saves[length] = int(use)
        self.boundaries.add(use, self._boundary_amount)
