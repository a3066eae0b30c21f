"""Reuse: which values are needed again, and when; learned from how requests go on from one another, not their content.

Each request that publishes a text leaves a `Visit`. What happened to visits like it says how long to keep what it left
(`VisitMemory`), at prices at which all that is kept just fits (`RoomPrices`). So a value has a moment at which keeping it stops
to pay, which only changes when it is used: a rank.

Time is counted in visits of sessions, so every rank of a deployment decides alike. Costs: O(1) a request, and after every
`revise_every` of them a few passes in numpy over what is remembered. Memory: two rings of visits, and what hangs on lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unified_tree.node import Tier
from unified_tree.room_prices import RoomPrices
from unified_tree.visit import MEAN_GAPS, Visit, behind, latest
from unified_tree.visit_memory import LEAST_COST, VisitMemory

if TYPE_CHECKING:
    from unified_tree.line import Line
    from unified_tree.node import Node, Value
    from unified_tree.state import TreeState

KNOWN_GAPS: Final = 3
"""A place where sessions have forked off so often is foreseen by its own gaps."""
GAPS_KEPT: Final = 128.0
"""It is kept for so many of them at most, since uses come in bursts."""
RANKS: Final = 4
"""Boundaries of a session are told apart by how many lie behind them: 0, 1, 2, or more."""
RESUMED_FADE: Final = 4096.0


class Reuse:
    """What one tree has learned.

    Attributes:
        now: how many visits sessions had.
    """

    def __init__(self, state: TreeState) -> None:
        self._state = state
        self._settings = settings = state.settings
        self.now = 0
        self._sessions = VisitMemory(settings.remembered_visits)
        self._forks = VisitMemory(settings.remembered_forks)
        self._device_prices = RoomPrices(state, Tier.DEVICE)
        self._host_prices = RoomPrices(state, Tier.HOST)
        self._resumed = [1.0] * RANKS

    # -- what happens

    def arrived(self, node: Node, length: int) -> None:
        """A request has matched so far. Cost: O(1), but for every `revise_every`th visit."""
        line = node.line
        visit = None if line is None else latest(line)
        if line is None or visit is None:
            return
        if not visit.is_gone_on_from(length):
            self._fork(line, length)
        elif not (visit.is_open and visit.serial == self._sessions.last_serial):  # else it tries again
            self._go_on(visit, length)

    def grew(self, node: Node) -> None:
        """A new leaf stands in the tree. Cost: O(1), but for every `revise_every`th visit."""
        line, parent = node.line, node.parent
        if line is None or parent is None:
            return
        start, visit = parent.end, latest(line)
        if visit is None:
            fork, above = max(0, line.fork), line.parent
            before = None if above is None else latest(above)
            if before is not None and before.is_gone_on_from(fork):
                # Where evicted text comes back, the fork lies beyond what was matched.
                visit = before if before.is_open else self._go_on(before, fork)
            else:
                if above is not None and fork > start:
                    self._fork(above, fork)
                visit = self._begin(Visit(self.now, fork, fork, None, is_fork=False))
            line.visit = visit
        elif not visit.is_open and start < visit.end:  # evicted text comes back
            visit = self._go_on(visit, start)
        visit.went_on(node.end, self.now)
        self._sessions.judge(visit)

    def saved(self, node: Node) -> None:
        """A window or a state was saved at a node's end. Cost: O(1)."""
        visit = None if node.line is None else latest(node.line)
        if visit is not None:
            visit.saved(node.end, self._settings.listed_saves)
            self._sessions.judge(visit)

    def _go_on(self, before: Visit, length: int) -> Visit:
        """A request goes on from a session's last visit, at some length."""
        self._answer(before, length)
        visit = before.by = Visit(self.now, before.start, length, before, is_fork=False)
        visit.saves = tuple([at for at in before.saves if at <= length])
        return self._begin(visit)

    def _begin(self, visit: Visit) -> Visit:
        """A session has a new visit."""
        self._sessions.enter(visit)
        self.now += 1
        if self.now % self._settings.revise_every == 0:
            self._revise()
        return visit

    def _fork(self, line: Line, length: int) -> None:
        """A request shares a session's text only up to some length, far from its end."""
        length -= length % self._state.save_grid_tokens
        if length <= 0:
            return
        forks = line.forks
        if forks is None:
            forks = line.forks = {}
        before = forks.pop(length, None)
        if before is not None:
            self._answer(before, length)
        elif len(forks) >= self._settings.listed_forks:
            del forks[next(iter(forks))]
        visit = forks[length] = Visit(self.now, 0, length, before, is_fork=True)
        if visit.turns < KNOWN_GAPS:
            self._forks.enter(visit)

    def _answer(self, visit: Visit, length: int) -> None:
        """A request goes on from a visit, at some length."""
        if not visit.is_fork:
            self._sessions.answered(visit, self.now - visit.at)
        elif visit.turns < KNOWN_GAPS:
            self._forks.answered(visit, self.now - visit.at)
        if visit.saves:
            self._resumed[min(RANKS - 1, behind(visit.saves, length))] += 1.0

    def _revise(self) -> None:
        sessions, forks = self._sessions.revise(self.now), self._forks.revise(self.now)
        if sum(self._resumed) > RESUMED_FADE:
            self._resumed = [max(1.0, count / 2) for count in self._resumed]
        self._device_prices.revise(sessions, forks, self._resumed)
        if self._state.host_value_count:
            self._host_prices.revise(sessions, forks, self._resumed)

    def evicted(self, value: Value) -> None:
        """A value is a victim."""
        prices = self._host_prices if value.tier else self._device_prices
        prices.evicted(value.component, is_early=value.score > self.now)

    # -- what it means

    def keep_until(self, value: Value) -> float:
        """The moment at which keeping a value stops to pay, in visits of sessions; -1 if nothing is known. Cost: O(1)."""
        node = value.node
        line = node.line
        visit = None if line is None else latest(line)
        if line is None or visit is None:
            return -1.0
        until = self._kept_until(visit, value)
        fork = None if line.forks is None else line.forks.get(node.end)
        return until if fork is None else max(until, self._kept_until(fork, value))

    def _kept_until(self, visit: Visit, value: Value) -> float:
        memory = self._forks if visit.is_fork else self._sessions
        if not memory.is_ready:
            return float(visit.at)
        prices = self._host_prices if value.tier else self._device_prices
        cost = max(LEAST_COST, prices.cost(visit))
        if visit.is_fork and visit.turns >= KNOWN_GAPS:  # it is used at a steady rate, as far as that is known
            worth = MEAN_GAPS / cost - MEAN_GAPS * visit.mean_gap  # after so long without a use its rate is not worth its room
            return visit.at + max(0.0, min(worth, GAPS_KEPT * max(1.0, visit.mean_gap)))
        if not (visit.is_fork or self._state.is_path[value.component]):
            end, saves = value.node.end, visit.saves
            rank = min(RANKS - 1, behind(saves, end)) if end in saves else RANKS - 1
            cost *= max(self._resumed) / self._resumed[rank]
        return visit.at + memory.keep_for(visit.row, cost)
