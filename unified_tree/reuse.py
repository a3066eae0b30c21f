"""Reuse: which values are needed again, and when; learned from how requests go on from one another, not their content.

Each request that publishes a text leaves a `Visit`. What happened to visits like it says what a value that it left is worth at
each age (`VisitMemory`). Values of the same worth at the same age wait in one queue, by when they were used last, so the next
victim stands at an end of some queue.

Until enough is known values go by recency. Then sessions are told apart only while that pays, judged by visits that the judging
knowledge does not come from; else all of them are worth the same at the same age. While less is hit so than by recency, which
is simulated beside, values go by recency again.

Time is counted in ticks of the tree's clock, so every rank of a deployment decides alike. Costs: O(1) a request, and for every
`revise_every` visits fifty to a hundred slices of learning, one a visit, or some of those over few visits. Memory: rings of
visits, and what hangs on lines.
"""

from __future__ import annotations

from math import inf, log2, sqrt
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from unified_tree.held_by_recency import HeldByRecency
from unified_tree.node import Tier
from unified_tree.place_memory import PlaceMemory
from unified_tree.tuples import untracked
from unified_tree.visit import Visit, behind, latest
from unified_tree.visit_fit import (
    ALIKE,
    BOUNDARY_SHARES,
    LENGTH_SIZES,
    LENGTHS,
    PACES,
    PACES_AN_OCTAVE,
    SHORTEST,
)
from unified_tree.visit_memory import VisitMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.line import Line
    from unified_tree.node import Node, Value
    from unified_tree.state import TreeState

KNOWN_GAPS: Final = 3
"""A place where sessions have forked off so often is foreseen by its own gaps."""
RANKS: Final = 4
"""Boundaries of a session are told apart by how many lie behind them: 0, 1, 2, or more."""
LAST_RESUMED: Final = 4.0
"""Before anything is known a session's last boundary is resumed from so many times as often as any other."""
RESUMED_FADE: Final = 4096.0
FALLEN_NODES: Final = 16
"""Where a boundary is saved, those before it are looked for on so many nodes."""
COUNTED_AGES: Final = 64.0
"""Of about so many values that went, the age at which they did is noted."""
FIRST_LEARNED: Final = 64
"""After so many visits something is learned, and after as many again, up to `revise_every`."""
EARLY_SLICES: Final = 4
"""A visit takes so many slices of learning, each of them short, while there are `revise_every`; more while there are fewer."""
LEARNED: Final = object()
BY_RECENCY: Final = 0
BY_AGE: Final = 1
BY_CLASS: Final = 2
"""How values are ranked: as `lru`; or by what is known of all sessions at an age, and of places where they fork off; or by what
is known of sessions like theirs."""
DOUBT: Final = 1.4
"""What hits are expected of classes of sessions is in doubt by this share over the root of how many visits say so: two standard
errors, about. They are told apart if more hits are expected beyond doubt, and go on to be with half of that."""
FORESEEN: Final = 0.03
"""If classes make an answer likelier by so much (as a logarithm), they are told apart unless fewer hits are expected beyond
doubt; half of that will do to go on. Likelihoods say so long before hits do, which a few long sessions decide."""
LENGTH_PAYS: Final = 1.1
"""Length counts if so many times as many hits are expected of that, and goes on to if LENGTH_STILL_PAYS. What is expected
leaves out that tiers hold the same, and that sessions grow, so little of it is not to be trusted."""
LENGTH_STILL_PAYS: Final = 1.05
QUEUE_SPAN: Final = float(1 << 38)
TICK: Final = 2.0**-50
"""What was used a tick later is worth more by this share, so that of two queues, too, the older value goes first."""
UNKNOWN: Final = 0
"""The queue of what was never used, or was superseded: it goes first."""
SESSION: Final = 1
FORK: Final = 2
STEADY: Final = 3
WAITED_FOR: Final = 0
"""In place of the gap of a steady place: its request waits for room there."""
PACE_BITS: Final = 5
DENSITY_BITS: Final = 8
PACE_MASK: Final = (1 << PACE_BITS) - 1
DENSITY_MASK: Final = (1 << DENSITY_BITS) - 1
KIND_SHIFT: Final = PACE_BITS + DENSITY_BITS
"""A queue's number has these bits of its density lowest, then those of its pace, then its kind: below 2 ** 15, so that a score,
which has some tick below QUEUE_SPAN besides, is an exact float."""
NO_RANK: Final = RANKS
ANY_LENGTH: Final = LENGTHS
"""Where pools have room of their own a density is length * (RANKS + 1) + rank; both are told apart where they matter."""
OF_RUNNING: Final = (LENGTHS + 1) * (RANKS + 1)
"""Or it is a length behind this one, of the last boundary of a session whose request runs."""
DENSITIES: Final = 80
DENSITIES_AN_OCTAVE: Final = 2
UNIT_DENSITY: Final = 32
"""One token hit for each page that is kept."""
SHARED: Final = 1 << DENSITY_BITS - 1
"""Where pools share room a density is such a bin, from here on."""
HITS_A_PAGE: Final[list[float]] = [2.0 ** ((i - UNIT_DENSITY) / DENSITIES_AN_OCTAVE) for i in range(DENSITIES)]


class SharedRoom:
    """What things take of the room that the pools of one tier share.

    Attributes:
        page_blocks: of a page, by component.
        token_blocks: of a token of path.
        boundary_blocks: of all that a boundary needs.
    """

    def __init__(self, state: TreeState, page_blocks: list[int], reach: list[int]) -> None:
        self.page_blocks = page_blocks
        self.token_blocks = self.boundary_blocks = 0.0
        for i, blocks in enumerate(page_blocks):
            if state.is_path[i]:
                self.token_blocks += blocks / state.page_size
            elif state.is_gate[i]:
                self.boundary_blocks += float(blocks) * (reach[i] // state.page_size + 1)


class Reuse:
    """What one tree has learned.

    Attributes:
        visits: how many visits sessions had.
        mode: BY_RECENCY, BY_AGE or BY_CLASS.
        rankings: how often values came to be ranked in another way.
        entering: tokens of a text that is being inserted, whose pages the tree does not have yet.
        fork: the visit of the request that arrived last, if it forks off. If that leaves and has published nothing, its visit
            is to be `is_open` again, for it may try again.
    """

    def __init__(self, state: TreeState) -> None:
        self._state = state
        self._settings = settings = state.settings
        self.visits = 0
        self.mode = BY_RECENCY
        self._classes_pay = False
        self.rankings = 0
        self.entering = 0
        self.fork: Visit | None = None
        self._sessions = VisitMemory(settings.remembered_visits)
        # Where windows or states are required recency, too, could not resume from all that it holds.
        self._recency = None if state.is_gated else HeldByRecency(2 * settings.remembered_visits)
        self._forks = VisitMemory(settings.remembered_forks)
        self._places = PlaceMemory(settings.remembered_forks)
        self._learning: Iterator[None] | None = None
        self._resumed = [LAST_RESUMED, *[1.0] * (RANKS - 1)]
        self._reach = [max(1, c.coverage.window_tokens or 1) - 1 for c in state.components]
        self._usual_ages = [[0.0] * len(state.components) for _ in range(2)]  # at which values go, on device and on host
        self._longest_reach = max(self._reach)
        # Boundaries' share of what all room is worth, which is as much as paths hold tokens, and the price of one of them.
        self._boundary_share = self._boundary_price = 0.0
        self._ranked_price = 0.0  # as values are ranked now
        self._shared = [None if p is None else SharedRoom(state, p.page_blocks, self._reach) for p in state.shared_pools]
        self._weigh_ranks()
        self._weigh_lengths()

    @property
    def now(self) -> int:
        """The tree's clock: it ticks with each match and insert."""
        return self._state.clock

    # -- what happens

    def arrived(self, node: Node, length: int) -> None:
        """A request has matched so far. Cost: O(1), and with some visits slices of learning."""
        self.fork = None
        line = node.line
        visit = None if line is None else latest(line)
        if line is None or visit is None:
            return
        if not visit.is_gone_on_from(length):
            self.fork = self._fork(line, length, length)
        elif not visit.is_open:  # else it tries again
            self._go_on(line, visit, length, length, visit.end)
            line.kept = length

    def grew(self, node: Node, last: int) -> None:
        """A new leaf stands in the tree, of a text up to `last`. Cost: O(1), and with some visits slices of learning."""
        self.entering = last - node.start
        try:
            self._grew(node)
        finally:
            self.entering = 0

    def _grew(self, node: Node) -> None:
        line, parent = node.line, node.parent
        if line is None or parent is None:
            return
        start, visit = parent.end, latest(line)
        if visit is None:
            fork, above = max(0, line.fork), line.parent
            before = None if above is None else latest(above)
            if above is not None and before is not None and before.is_gone_on_from(fork):
                # Where evicted text comes back, the fork lies beyond what was matched, maybe in a later chunk of the prompt.
                visit = before if before.is_open or before.end == start else self._go_on(above, before, fork, start, fork)
                visit.recency_end = min(visit.recency_end, fork)
                above.kept = fork
            else:
                if above is not None and fork > start:
                    self._fork(above, fork, start)
                visit = self._begin(Visit(self.now, fork, fork, None, is_fork=False))
            line.visit = visit
        elif not visit.is_open and start < visit.end:  # evicted text comes back
            visit = self._go_on(line, visit, start, start, visit.end, is_whole=False)
        if visit.recency_end > start:
            self._sessions.missed(min(node.end, visit.recency_end) - start)
        line.kept = node.end
        self._went_on(visit, node.end)

    def published(self, node: Node, length: int) -> None:
        """A request has published a text that the tree had, which ends in a node. Cost: O(1)."""
        visit = None if node.line is None else latest(node.line)
        if visit is not None and visit.is_open:
            self._went_on(visit, max(length, visit.end))

    def _went_on(self, visit: Visit, end: int) -> None:
        """A session's request has published more. Cost: O(1)."""
        visit.went_on(end, self.now)
        self._sessions.judge(visit)
        if self._recency is not None:
            self._recency.grew(visit)

    def saved(self, node: Node) -> None:
        """A window or a state was saved at a node's end. Cost: O(log n) for each value behind which that is, of some nodes."""
        visit = None if node.line is None else latest(node.line)
        if visit is None:
            return
        before, end = visit.saves, node.end
        if visit.saved(end, self._settings.listed_saves):
            earlier = before if before and before[-1] < end else tuple([at for at in before if at < end])
            if earlier or not before:
                # These have one more behind them now, and are resumed from more rarely.
                self._reorder_up(node.parent, earlier[max(0, len(earlier) - RANKS + 1)] if earlier else visit.start)

    def locked(self, node: Node) -> None:
        """The path up to a node is locked from now on. If its session's last boundary is there, a request of it runs.

        Cost: O(log n) for each value of that boundary.
        """
        visit = None if not self._state.is_gated or node.line is None else latest(node.line)
        if visit is not None and not visit.is_open and visit.saves and visit.saves[-1] == node.end:
            visit.is_running = True
            self._reorder_up(node, node.end)

    def unlocked(self, node: Node) -> None:
        """The path up to a node was locked, and is not any more: no request of its session runs.

        Cost: O(log n) for each value of its last boundary, and O(1) for each node behind that, which its request has added.
        """
        visit = None if not self._state.is_gated or node.line is None else latest(node.line)
        if visit is not None and visit.saves:
            visit.is_running = False
            at: Node | None = node
            while at is not None and at.start >= visit.saves[-1]:
                at = at.parent
            self._reorder_up(at, visit.saves[-1])

    def _reorder_up(self, at: Node | None, first: int) -> None:
        """Put windows and states where they belong now, from a node up to all that the boundary of some length needs."""
        first -= self._longest_reach
        nodes = 0
        while at is not None and at.end >= first and nodes < FALLEN_NODES:
            for i, is_path in enumerate(self._state.is_path):
                if not is_path:
                    self._reorder(at.device[i])
                    self._reorder(at.host[i])
            at = at.parent
            nodes += 1

    def _reorder(self, value: Value | None) -> None:
        """Put a value into the queue where it belongs now."""
        if value is None or not value.is_placed:
            return
        pool = self._state.pools(value.tier)[value.component]
        if self.place(value)[0] != queue_of(value):
            pool.reorder(value)

    def _go_on(self, line: Line, before: Visit, length: int, hit: int, most: int, *, is_whole: bool = True) -> Visit:
        """A request goes on from a session's last visit, at some length; where text was evicted, from more than is known.

        Args:
            hit: how much of the whole text is still there, of its path at least.
            most: how much of it the request can have in common with the visit.
        """
        self._answer(before, length, is_whole=is_whole)
        own, by_recency = before.owns_from, 0
        if self._recency is not None:
            by_recency = own + int(self._recency.gone_on_from(line, before))
            self._compare(max(0, hit - own), max(0, min(hit, by_recency) - own))
        visit = before.by = Visit(self.now, before.start, length, before, is_fork=False)
        if self._recency is not None and self._recency.pieces.is_bounded:
            visit.recency_end = min(most, by_recency)
        saves = before.saves
        visit.saves = saves if not saves or saves[-1] <= length else untracked(tuple([at for at in saves if at <= length]))
        return self._begin(visit)

    def _begin(self, visit: Visit) -> Visit:
        """A session has a new visit."""
        self._sessions.enter(visit)
        if self._recency is not None:
            self._recency.entered(visit)
        self.visits += 1
        count, every = self.visits, self._settings.revise_every
        if self._learning is None and (count % every == 0 or (count < every and count % FIRST_LEARNED == 0)):
            self._learning = self._learn()
        for _ in range(max(1, EARLY_SLICES * every // count)):
            if self._learning is not None and next(self._learning, LEARNED) is LEARNED:
                self._learning = None
        return visit

    def _fork(self, line: Line, length: int, hit: int) -> Visit | None:
        """A request shares a session's text only up to some length, far from its end. Returns its visit; None if the length is
        on no grid.

        Args:
            hit: how much of that was there.
        """
        length -= length % self._state.save_grid_tokens
        if length <= 0:
            return None
        forks = line.forks
        if forks is None:
            forks = line.forks = {}
        before = forks.get(length)
        if before is not None and before.is_open:  # it tries again
            before.is_open = False
            return before
        visit = Visit(self.now, 0, length, before, is_fork=True)
        visit.is_open = False
        owner = latest(line)
        if self._recency is not None and owner is not None:
            by_recency = self._recency.forked_off(line, visit)
            self._compare(max(0, min(hit, length) - owner.owns_from), by_recency)
        if before is not None:
            del forks[length]
            self._answer(before, length)
        elif len(forks) >= self._settings.listed_forks:
            forgotten = forks.pop(next(iter(forks)))
            if self._recency is not None:
                self._recency.forgotten(line, forgotten)
        forks[length] = visit
        if visit.turns < KNOWN_GAPS:
            self._forks.enter(visit)
        else:
            self._places.enter(visit)
        return visit

    def _compare(self, hit: i64, by_recency: i64) -> None:
        """So much was hit of a text that sessions had, and so much of it recency would hit."""
        if self._recency is not None and self._recency.pieces.is_bounded:
            self._sessions.compare(hit, by_recency)
            if self._sessions.is_ready:
                self._choose_mode()

    def _answer(self, visit: Visit, length: int, *, is_whole: bool = True) -> None:
        """A request goes on from a visit, at some length."""
        if not visit.is_fork:
            self._sessions.answered(visit, self.now - visit.at)
        elif visit.turns < KNOWN_GAPS:
            self._forks.answered(visit, self.now - visit.at)
        else:
            self._places.answered(visit, self.now - visit.at)
        if visit.saves and is_whole:
            self._resumed[min(RANKS - 1, behind(visit.saves, length))] += 1.0
            self._weigh_ranks()

    def _learn(self) -> Iterator[None]:
        """In slices; see `_begin`."""
        held_tokens, boundaries = self._held()
        if self._recency is not None and self._recency.pieces.is_bounded:
            self._recency.pieces.has_room_for(int(held_tokens))
        yield from self._sessions.learn(self.now, held_tokens, boundaries)
        yield from self._forks.learn(self.now, 0.0, 0.0)
        yield
        yield from self._places.learn(self.now)
        doubt, less = DOUBT / sqrt(float(self._sessions.judged)), 2.0 if self.mode == BY_CLASS else 1.0
        pays = 1.0 - doubt if self._sessions.foresight >= FORESEEN / less else 1.0 + doubt / less
        self._classes_pay = self._sessions.gain >= pays
        by_length = self._sessions.by_length
        most = max(by_length)
        enough = LENGTH_STILL_PAYS if self._boundary_share else LENGTH_PAYS
        is_scarce = held_tokens > 0 and boundaries > 0 and most >= enough
        self._boundary_share = BOUNDARY_SHARES[by_length.index(most)] if is_scarce else 0.0
        self._boundary_price = self._boundary_share * held_tokens / max(1.0, boundaries)
        self._weigh_lengths()
        self._choose_mode()
        if sum(self._resumed) > RESUMED_FADE:
            self._resumed = [max(1.0, count / 2) for count in self._resumed]
            self._weigh_ranks()

    def _choose_mode(self) -> None:
        """Rank values by all that is known and trusted from now on. Cost: O(1)."""
        mode = BY_RECENCY
        if self._sessions.is_trusted:
            mode = BY_CLASS if self._classes_pay else BY_AGE
        if mode != self.mode or self._boundary_price != self._ranked_price:
            self.mode, self._ranked_price = mode, self._boundary_price
            self.rankings += 1

    def _weigh_ranks(self) -> None:
        """Settle what share of a session's worth its boundaries have, by their rank. Cost: O(RANKS)."""
        most = max(self._resumed)
        self._ranks = [*[count / most for count in self._resumed], 1.0]

    def _weigh_lengths(self) -> None:
        """Settle how many tokens are hit of a session, for the price of what is kept, by its length.

        Where boundaries have no price, that counts of a session whose request runs, for its path costs nothing for so long. No
        such session is worth more than others for its length, for its path will cost again.
        """
        token_price = 1.0 - self._boundary_share
        sizes: list[float] = LENGTH_SIZES.tolist()
        self._lengths = [*[size / (size * token_price + self._boundary_price) for size in sizes], 1.0]
        self._of_running = [min(1.0, size / self._sessions.mean_tokens) for size in sizes]

    def went(self, value: Value) -> None:
        """A value is evicted. Cost: O(1).

        Before some of a path is lost, what paths hold does not say for how much there is room.
        """
        is_lost = self._state.is_path[value.component] and not value.copied
        if is_lost and self._recency is not None and not self._recency.pieces.is_bounded:
            self._recency.pieces.has_room_for(int(self._held()[0]))
        if not (value.stranded or value.spare) and value.score >= QUEUE_SPAN:
            ages, i = self._usual_ages[value.tier is Tier.HOST], value.component
            ages[i] += (float(self.now - since(value)) - ages[i]) / COUNTED_AGES

    def _held(self) -> tuple[float, float]:
        """How many tokens of path the tree holds on the tier that holds more, with those of `entering`, and for how many
        boundaries there is room; 0 if these need none of their own.
        """
        state = self._state
        tiers = state.device_pools, state.host_pools
        on_tier = [max([0, *[pool.used_pages for pool in pools if pool.is_path]]) for pools in tiers]
        on_tier[0] += self.entering // state.page_size
        held = max(on_tier)
        tier = on_tier.index(held)
        pools = tiers[tier]
        # A sharer's pages on device are its owner's.
        fitting = [
            (pool.ledger.page_count or pool.used_pages) // (self._reach[i] // state.page_size + 1)
            for i, pool in enumerate(pools)
            if state.is_gate[i] and (pool.tier is Tier.HOST or state.owner_of[i] == i)
        ]
        return float(held * state.page_size), 0.0 if self._shared[tier] is not None else float(min(fitting, default=0))

    # -- what it means

    def place(self, value: Value) -> tuple[i64, i64]:
        """The queue in which a value waits, and since which tick. Cost: O(1)."""
        node = value.node
        line = node.line
        visit = None if line is None else latest(line)
        if line is None or visit is None or not value.touched:
            return UNKNOWN, value.touched
        if node.end > line.kept and value.score >= QUEUE_SPAN:
            queue, at = queue_of(value), since(value)  # its session has left it behind, where it waits as it did
        else:
            queue, at = self._queue(visit, value), i64(value.touched)
        fork = None if line.forks is None else line.forks.get(node.end)
        if fork is not None:
            other = self._queue(fork, value)
            old = min(at, self.now - i64(self._usual_ages[value.tier is Tier.HOST][value.component]))
            if self.worth(other, old) > self.worth(queue, old):  # there it stays longer
                queue = other
        return queue, at

    def _queue(self, visit: Visit, value: Value) -> i64:
        """A queue is of one kind, one pace (or gap), and one density."""
        kind = SESSION
        if visit.is_open and not visit.is_fork and value.tier is Tier.DEVICE:
            kind, pace = STEADY, WAITED_FOR
        elif not visit.is_fork:
            pace = self._sessions.pace(visit) if self.mode == BY_CLASS else ALIKE
        elif visit.turns < KNOWN_GAPS:
            kind, pace = FORK, self._forks.pace(visit)
        else:
            octaves = log2(max(1.0, visit.mean_gap))
            kind, pace = STEADY, min(PACES - 1, max(WAITED_FOR + 1, int(PACES_AN_OCTAVE * octaves + 0.5)))
        return (kind << PACE_BITS | pace) << DENSITY_BITS | self._density_of(visit, value)

    def _density_of(self, visit: Visit, value: Value) -> i64:
        """A length and a rank as one number, where pools have room of their own; else the bin of how many tokens a page hits.

        Where pools share room a path costs its own blocks and those of a boundary, without which it is of no use, and what is
        optional goes with it. A boundary costs its own blocks alone, for its path is there, and does not go before that. Nor
        does one of a place where sessions fork off, or one before the last, if the text is long for what it takes. Where pools
        do not, and boundaries run short before paths, both have a price; else length does not matter: windows and states should
        stay with the sessions that paths stay with. But while a request of the session runs its path costs nothing, and a last
        boundary is worth less if its text is shorter than most.
        """
        component = value.component
        is_path = self._state.is_path[component]
        shared = self._shared[1 if value.tier is Tier.HOST else 0]
        rank = NO_RANK
        if not (is_path or visit.is_fork) and (self._state.is_gated or shared is not None):
            end = value.node.end
            rank = rank_of(visit.saves, end, end + self._reach[component])
        if shared is None:
            is_running = rank == 0 and visit.is_running and value.tier is Tier.DEVICE
            if self._boundary_share or is_running:
                length = min(LENGTHS - 1, max(0, visit.room.bit_length() - 1 - SHORTEST))
                if self._boundary_share:
                    return length * (RANKS + 1) + rank
                if self._of_running[length] < 1.0:
                    return OF_RUNNING + length
            return ANY_LENGTH * (RANKS + 1) + rank
        room = float(max(self._state.page_size, visit.room))
        blocks = shared.boundary_blocks
        if not self._state.is_gate[component]:
            blocks += room * shared.token_blocks
        return SHARED + _density(room * max(1, shared.page_blocks[component]) / blocks * self._ranks[rank])

    def worth(self, queue: i64, at: i64) -> float:
        """Hits a page and tick that keeping a value of a queue is worth that was used at some tick (beside others of its pool,
        where pools have room of their own); the least is evicted first. By recency it is that tick. Cost: O(1).
        """
        if self.mode == BY_RECENCY:
            return float(at)
        if queue == UNKNOWN:
            return -inf
        age: i64 = self.now - at
        kind: i64 = queue >> KIND_SHIFT
        pace: i64 = queue >> DENSITY_BITS & PACE_MASK
        if kind == STEADY and pace == WAITED_FOR:
            worth = 1.0 / (1.0 + float(age))
        elif kind == STEADY:
            worth = self._places.worth(pace, age)
        elif kind == FORK and self._forks.is_ready:
            worth = self._forks.worth(pace, age)
        else:
            worth = self._sessions.worth(pace if self.mode == BY_CLASS else ALIKE, age)
        density: i64 = queue & DENSITY_MASK
        if density >= SHARED:
            hits = HITS_A_PAGE[density - SHARED]
        elif density >= OF_RUNNING:
            hits = self._of_running[density - OF_RUNNING] * self._ranks[0]
        else:
            hits = self._lengths[density // (RANKS + 1)] * self._ranks[density % (RANKS + 1)]
        return worth * hits * (1.0 + float(at) * TICK)

    def lows(self, queue: i64) -> list[int]:
        """The ages at which values of a queue are worth less than shortly before and after, those at which least first. Cost:
        as `VisitMemory.lows`.
        """
        kind: i64 = queue >> KIND_SHIFT
        if self.mode == BY_RECENCY or queue == UNKNOWN or kind == STEADY:
            return []
        pace: i64 = queue >> DENSITY_BITS & PACE_MASK
        if kind == FORK and self._forks.is_ready:
            return self._forks.lows(pace)
        return self._sessions.lows(pace if self.mode == BY_CLASS else ALIKE)


def rank_of(saves: tuple[int, ...], end: int, reach: int) -> int:
    """How many of a session's boundaries lie behind the last one that needs a value, at most RANKS - 1; so many if none does.

    Args:
        saves: what is known of them. A value behind all of these stands at one that is not, or no more.
        end, reach: boundaries from here to there need it.

    >>> rank_of((100, 200, 300), 200, 200), rank_of((100, 200, 300), 150, 310), rank_of((100, 300), 200, 250)
    (1, 0, 3)
    >>> rank_of((100, 200), 300, 300)
    0
    """
    if not saves or end > saves[-1]:
        return 0
    for rank, at in enumerate(reversed(saves)):
        if at <= reach:
            return min(RANKS - 1, rank) if at >= end else RANKS - 1
    return RANKS - 1


def _density(tokens: float) -> int:
    """The bin of so many tokens hit for each page that is kept."""
    return min(DENSITIES - 1, max(0, int(DENSITIES_AN_OCTAVE * log2(tokens) + UNIT_DENSITY + 0.5)))


def queue_of(value: Value) -> i64:
    """The queue that is noted in a value's score."""
    return int(value.score / QUEUE_SPAN)  # exact, for it is a power of two


def since(value: Value) -> i64:
    """Since which tick it waits there."""
    return int(value.score - float(queue_of(value)) * QUEUE_SPAN)
