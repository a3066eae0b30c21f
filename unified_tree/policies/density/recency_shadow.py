"""A shadow cache: what recency would hold of all texts, windows and states, by which the learned order is judged.

A use of a text is a use of all of it from its beginning, so recency holds a prefix of each text. Each line knows up to where
its text was used by which use, as stairs: the longer, the earlier. Each use has an amount in a ring: the tokens that nobody has
used since. Recency evicts the oldest use first, so what it holds is a number: the first use that is still there. Whenever the
tree has lost something for want of room, recency has, too, and holds no more than the larger tier can.

It does as the tree would: the end of a text that nothing can be resumed from goes before all else, and boundaries leave with
their text; each insert is a use. So on one tier, while recency decides, both hit nearly alike. It knows nothing of locks.

A use of a boundary (a length one can resume from) is a use of the windows before it; a state is a window of one token, which no
other boundary has. Each kind has a ring of its own. Of windows that overlap the one used last has what they share, so recency
holds a boundary as long as it holds what is left to it; what its windows need before a fork is listed there. Recency would
resume from the longest boundary that it holds, within the text that it holds. Where the pools share one budget, there is one
ring, and amounts are shares of that budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.policies.density.turns import LOST, Place, Save, Session, Stair, session_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.declare.settings import TreeSettings
    from unified_tree.nodes.line import Line

FEWER: Final = 0.001
"""A trial of the learned order ends when it has hit so many fewer of the tokens that came lately than recency would have."""
FADES: Final = 512
"""What came before so many of the last requests counts half."""
WAIT: Final = 64
"""After a trial recency decides for at least so many requests, and until less than `FEWER` of what came lately was lost."""
TRIED_AGAIN: Final = 0.5
"""A further trial begins with at most this share of that loss."""


@mypyc_attr(acyclic=True)
class Amount:
    """The rest of a use; an object of its own, because compiled code counts in it without making numbers into objects."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: i64 = 0


class Ring:
    """Amounts by their last use, of which the oldest are cut off.

    Args:
        size: how many uses are remembered.

    Attributes:
        held: the sum of what is held.
    """

    __slots__ = ("_amounts", "_first", "_next", "_size", "held")

    def __init__(self, size: int) -> None:
        self._size: i64 = size
        self._amounts: list[Amount] = []  # by use, from the size on in place of the oldest
        self._next: i64 = 0
        self._first: i64 = 0  # the oldest use that something is left of
        self.held: i64 = 0

    @property
    def last(self) -> i64:
        """The number of the last use; -1 for none."""
        return self._next - 1

    def cut(self, amount: i64) -> None:
        """No more than so much is held from now on; the oldest goes first. Cost: O(1), amortized over uses."""
        while self.held > amount and self._first < self._next:
            oldest = self._amounts[self._first % self._size]
            over = self.held - amount
            if oldest.left > over:
                oldest.left -= over
                self.held -= over
                break
            self.held -= oldest.left
            self._first += 1

    def use(self) -> i64:
        """The number of the next use, which has nothing yet. Cost: O(1)."""
        use = self._next
        self._next += 1
        if use < self._size:
            self._amounts.append(Amount())
            return use
        oldest = self._amounts[use % self._size]
        if use - self._size >= self._first:
            self.held -= oldest.left
            self._first = use - self._size + 1
        oldest.left = 0
        return use

    def add(self, use: i64, amount: i64) -> None:
        """A use has so much more. Cost: O(1)."""
        if use >= self._first:
            self._amounts[use % self._size].left += amount
            self.held += amount

    def take(self, use: i64, amount: i64) -> i64:
        """A later use has so much of this one's; how much of that is held. Cost: O(1)."""
        if use < self._first:
            return 0
        slot = self._amounts[use % self._size]
        there = min(amount, slot.left)
        if there > 0:
            slot.left -= there
            self.held -= there
        return there

    def holds(self, use: i64, amount: i64) -> i64:
        """How much it holds of so much of a use. Cost: O(1)."""
        return min(amount, self._amounts[use % self._size].left) if use >= self._first else 0

    def has(self, use: i64, amount: i64) -> bool:
        """Whether it holds so much of a use, or more. Cost: O(1)."""
        return use >= self._first and self._amounts[use % self._size].left >= amount


class Gate:
    """A kind of windows, or states, that a boundary needs.

    Args:
        ring: the amounts of its uses.
        tokens: of a window; 1 for a state.

    Attributes:
        ring: as given; of a budget that of all kinds. weight: what a token takes of its room, 0 for nothing.
    """

    __slots__ = ("ring", "tokens", "weight")

    def __init__(self, ring: Ring, tokens: int) -> None:
        self.ring = ring
        self.weight: i64 = 1
        self.tokens: i64 = tokens

    def amount(self, save: Save, fork: i64) -> i64:
        """What a boundary's window takes of the room, behind a fork and beside those that overlap and were used later.
        Cost: O(1).
        """
        first = max(save.length + save.short - self.tokens, save.below)
        first = max(first, fork)  # compiled, `max` of three would make objects
        last = min(save.length, save.above - self.tokens)
        return (last - first) * self.weight if first < last else 0


@mypyc_attr(acyclic=True)
class Request:
    """A request, as long as it is served.

    Attributes:
        place: where it forks off a text; None for nowhere.
        use: the last use of its text in what recency would hold; -1 for none.
        compared: up to where it is known whether it or recency hits its text.
        known: how much of its text the tree knew when it arrived; `held`: how much recency did.
    """

    __slots__ = ("compared", "held", "known", "place", "use")

    def __init__(self) -> None:
        self.place: Place | None = None
        self.use: i64 = -1
        self.compared: i64 = 0
        self.known: i64 = 0
        self.held: i64 = 0


class RecencyShadow:
    """What recency would hold, and whether it would hit more.

    Args:
        windows: of each kind of windows that a boundary needs its tokens; 1 for states.

    Attributes:
        texts: what it holds of texts; `gates`: of windows and states.
        save_grid_tokens: the grid on which boundaries are saved.
        is_ahead: whether recency would have hit more, and decides.
        by_recency: tokens that recency would have hit, of all that came.
        lead: tokens that were hit lately beyond those that recency would have hit; came: all tokens that came lately.
    """

    def __init__(self, settings: TreeSettings, windows: Sequence[int]) -> None:
        self._settings = settings
        size = 2 * settings.remembered_turns
        self.texts = Ring(size)
        self.save_grid_tokens = 1
        self._token_weight: i64 = 1
        self.gates = [Gate(Ring(size), tokens) for tokens in windows]
        self._rings = [gate.ring for gate in self.gates]
        self._longest: i64 = max(windows, default=0)
        self.is_ahead = False
        self.by_recency = 0
        self.lead = self.came = 0.0
        self._arrivals = 0
        self._tried_again_at = 0

    def share(self, token_weight: int, weights: list[int]) -> None:
        """All kinds share one budget from the start; a token of text and of each kind of window takes so much of it."""
        self._token_weight = token_weight
        for gate, weight in zip(self.gates, weights, strict=True):
            gate.ring, gate.weight = self.texts, weight
        self._rings = [self.texts]

    def arrived(self, line: Line | None, length: int, hit: int) -> Request:
        """A request has come whose text is known up to some length, if any is, and hits so much; returns it.

        Cost: O(lines from the root), at most the setting `cost_steps`, times O(listed_uses + listed_saves).
        """
        request = Request()
        self._count()
        if line is None:
            return request
        request.use = self.texts.use()
        text = self._used(line, length, request.use, 0)
        request.known, request.held = length, text
        would = min(text, hit)
        if self.gates:
            would = self._resumable(line, text)
            if would < hit <= text and _found(line.owner(hit), hit) is None:
                would = hit  # of spare windows, which go first by any order
                self._use(line, hit, 0)
            if text < length or would < hit:
                self._branched(line, text, would)
        self.by_recency += would
        self._compare(length, hit - would)
        request.compared = max(hit, would)
        return request

    def grew(self, request: Request | None, line: Line, start: int, end: int) -> None:
        """A text has grown in the tree, by a request or none; recency may have had it, or a part. Cost: as `arrived`."""
        if request is None:
            self._used(line, end, self.texts.use(), 0)
            return
        if request.use < 0 or request.use != self.texts.last:  # an insert is a use, too
            request.use = self.texts.use()
        text = self._used(line, end, request.use, 0)
        missed = 0
        if text > start:
            would = self._resumable(line, text) if self.gates else text
            if would > start:
                missed = max(0, would - request.compared)
            if text < end and self.gates:
                self._branched(line, text, would)
        self.by_recency += missed
        self._compare(end - start, -missed)
        request.compared += missed

    def saved(self, request: Request | None, line: Line, length: int, resumed: int) -> None:
        """A boundary's windows and states were saved; a request can resume at `resumed`, too. Cost: O(listed_saves)."""
        if not self.gates:
            return
        owner = line.owner(length)
        if request is not None and request.held < length <= request.known:  # it forks off there, and for recency before that
            save = _listed(owner, length)
            if save is None:
                self._list(session_of(owner), Save(length, LOST, 0, True, None))
                return
            if save.use == LOST or not save.is_saved:
                save.is_saved = True
                return
        self._use(owner, length, resumed - length)

    def _use(self, line: Line, length: i64, short: i64) -> None:
        """A boundary's windows and states are used. Cost: O(kinds, lines of a window, listed_saves)."""
        use: i64 = 0
        for ring in self._rings:
            use = ring.use()
        line, is_saved = line.owner(length), True
        while True:
            fork: i64 = max(0, line.fork)
            self._use_in(session_of(line), fork, Save(length, use, short, is_saved, None))
            if line.parent is None or length + short - self._longest >= fork:
                return
            line, length, short, is_saved = line.parent.owner(fork), fork, short + length - fork, False

    def _use_in(self, session: Session, fork: i64, save: Save) -> None:
        """A boundary of a text is used, or the end of what one behind it needs. Cost: O(kinds, listed_saves)."""
        before = _take_out(session, save.length)
        if before is not None:
            save.is_saved = save.is_saved or before.is_saved
            if self._has(before, fork):
                save.short = min(save.short, before.short)
            self._take(before, fork)
        first = save.length + save.short - self._longest
        other = session.saves
        while other is not None:
            if first < other.length < save.length:
                self._overlap(other, fork, other.below, min(other.above, save.length + save.short))
            elif other.length > save.length > other.length + other.short - self._longest:
                self._overlap(other, fork, max(other.below, save.length), other.above)
            other = other.next
        for gate in self.gates:
            gate.ring.add(save.use, gate.amount(save, fork))
        self._list(session, save)

    def _overlap(self, save: Save, fork: i64, below: i64, above: i64) -> None:
        """What a boundary shares with one that is used now is that one's."""
        below_before, above_before = save.below, save.above
        for gate in self.gates:
            save.below, save.above = below_before, above_before
            amount = gate.amount(save, fork)
            save.below, save.above = below, above
            gate.ring.take(save.use, amount - gate.amount(save, fork))

    def _take(self, save: Save, fork: i64) -> None:
        """A boundary has its last use no more."""
        for gate in self.gates:
            gate.ring.take(save.use, gate.amount(save, fork))

    def _list(self, session: Session, save: Save) -> None:
        """A boundary is the last one used. Cost: O(listed_saves)."""
        save.next = session.saves
        session.saves = last = save
        for _ in range(self._settings.listed_saves - 1):
            if last.next is None:
                return
            last = last.next
        last.next = None

    def _branched(self, line: Line, text: int, would: int) -> None:
        """Recency saves where the text that it holds ends, as `Match.save_at` says, though the tree holds more or nothing."""
        point = text - text % self.save_grid_tokens
        if point > would:
            self._use(line, point, 0)

    def unsaved(self, line: Line, length: int) -> None:
        """They go before all others, by any order. Cost: as `saved`."""
        line = line.owner(length)
        if _found(line, length) is not None:
            save = _take_out(session_of(line), length)
            assert save is not None
            self._take(save, max(0, line.fork))

    def stranded(self, line: Line, begin: int, end: int) -> None:
        """The text in [begin, end), and what is behind, goes before all others, by any order, unless recency holds a boundary
        behind its beginning.

        Cost: O(forks in it, times listed_uses + listed_saves).
        """
        while end > begin:
            if end <= line.fork:
                line = line.owner(end)
            session, start = line.policy_state, max(0, line.fork)
            end = start
            if not isinstance(session, Session):
                return
            save = session.saves
            while save is not None:
                if save.length > begin and self._holds(line, save):
                    return
                save = save.next
            reached: i64 = start
            stair, left = session.stairs, None
            while stair is not None:
                last = stair.end
                if last > begin:
                    self.texts.take(stair.use, (last - max(reached, begin)) * self._token_weight)
                if reached < begin:
                    stair.end = min(last, begin)
                    left = stair
                reached = last
                stair = stair.next
            if left is None:
                session.stairs = None
            else:
                left.next = None

    def _count(self) -> None:
        """One more request."""
        self._arrivals += 1
        if self._arrivals % FADES == 0:
            self.lead /= 2
            self.came /= 2

    def _compare(self, came: int, lead: int) -> None:
        """So many tokens came, of which so many more were hit than by recency."""
        self.came += came
        self.lead += lead
        enough = FEWER * self.came * max(1.0, FADES / max(1, self._arrivals))  # at first as of so many requests
        if not self.is_ahead and self.lead < -enough:
            self.is_ahead = True
            self._tried_again_at = self._arrivals + WAIT
        elif self.is_ahead and self.lead > -enough and self._arrivals >= self._tried_again_at:
            self.is_ahead = False
            self.lead = max(self.lead, -TRIED_AGAIN * enough)

    def _used(self, line: Line, end: int, use: i64, steps: int) -> int:
        """All of a text up to `end` is used; how far recency holds it, from its beginning."""
        session = session_of(line)
        stair = session.stairs
        if stair is not None and stair.use == use and stair.end >= end:
            return end  # by the same use
        start = max(0, line.fork)
        above = start
        if line.parent is not None and steps < self._settings.cost_steps:
            above = self._used(line.parent, min(start, end), use, steps + 1)
        texts, weight = self.texts, self._token_weight
        limit: i64 = end
        held: i64 = start
        at: i64 = start
        longer: Stair | None = None  # the first one that ends behind this use
        while stair is not None:
            last = stair.end
            if at < limit:
                there = texts.take(stair.use, (min(last, limit) - at) * weight) // weight
                if held == at:
                    held += there
            if last > limit:
                if longer is None:
                    longer = stair
                first = max(at, limit)
                if held == first:
                    held += texts.holds(stair.use, (last - first) * weight) // weight
            at = max(at, last)
            stair = stair.next
        if above < start:
            held = 0
        if session.saves is not None and held < at:
            self._lost_behind(session, start, held)
        if end > start:
            texts.add(use, (limit - start) * weight)
            session.stairs = Stair(limit, use, longer)
            self._bound(session, start)
        return int(min(held, limit)) if above >= start else above

    def _bound(self, session: Session, start: i64) -> None:
        """Forget the last but one of too many stairs: the last has what it had. Cost: O(listed_uses)."""
        before: Stair | None = None
        left: Stair | None = None
        last = session.stairs
        assert last is not None
        count = 1
        while last.next is not None:
            before, left, last = left, last, last.next
            count += 1
        if left is not None and count > self._settings.listed_uses:
            begin = start if before is None else before.end
            self.texts.add(last.use, self.texts.take(left.use, (left.end - begin) * self._token_weight))
            if before is None:
                session.stairs = last
            else:
                before.next = last

    def _lost_behind(self, session: Session, fork: i64, length: i64) -> None:
        """Boundaries of a line behind a length have left with their text. Cost: O(listed_saves²)."""
        save = session.saves
        while save is not None:
            if save.length > length:
                _take_out(session, save.length)
                self._take(save, fork)
            save = save.next

    def _has(self, save: Save, fork: i64) -> bool:
        """Whether it holds what is left to a boundary behind a fork. Cost: O(kinds)."""
        for gate in self.gates:
            if gate.weight and save.short < gate.tokens and not gate.ring.has(save.use, gate.amount(save, fork)):
                return False
        return True

    def _holds(self, line: Line, save: Save) -> bool:
        """Whether it holds all windows and states of a boundary. Cost: O(lines of them, kinds and listed_saves)."""
        short = save.short
        if short > 0:
            return False
        while True:
            fork: i64 = max(0, line.fork)
            if not self._has(save, fork):
                return False
            short += save.length - fork
            if line.parent is None or short >= self._longest:
                return True
            line = line.parent.owner(fork)
            rest = _listed(line, fork)
            if rest is None or rest.short > short:
                return False
            save = rest

    def _resumable(self, line: Line | None, length: int) -> int:
        """The longest boundary that recency holds, up to a length; it is used."""
        for _ in range(self._settings.cost_steps):
            if line is None:
                break
            session, begin = line.policy_state, max(0, line.fork)
            if isinstance(session, Session) and session.saves is not None:
                longest = 0
                save: Save | None = session.saves
                while save is not None:
                    if longest < save.length <= length and self._holds(line, save):
                        longest = int(save.length)
                    save = save.next
                if longest:
                    self._use(line, longest, 0)
                    return longest
            length = min(length, begin)
            line = line.parent
        return 0


def _listed(line: Line, length: i64) -> Save | None:
    """What is listed of a line at a length. Cost: O(listed_saves)."""
    session = line.policy_state
    save = session.saves if isinstance(session, Session) else None
    while save is not None and save.length != length:
        save = save.next
    return save


def _found(line: Line, length: i64) -> Save | None:
    """A boundary of a line; None if the tree has not saved it. Cost: O(listed_saves)."""
    save = _listed(line, length)
    return save if save is not None and save.is_saved else None


def _take_out(session: Session, length: i64) -> Save | None:
    """Take a boundary out of those of a session; None if it is not among them. Cost: O(listed_saves)."""
    before: Save | None = None
    save = session.saves
    while save is not None and save.length != length:
        before, save = save, save.next
    if save is None:
        return None
    if before is None:
        session.saves = save.next
    else:
        before.next = save.next
    return save
