"""The state of a running request's lease: its pages, its locks and its progress, in rows of a batch or in its own memory.

Every page belongs at any moment to the free list, the tree or exactly one lease. A lease passes pages to the tree when computed
tokens are published (`PublishedTokens`).
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.controllers.cache.lease_tokens import LeaseLocks, LeaseTokens, PublishedTokens
from unified_tree.controllers.cache.miss_ledger import LeaseMisses
from unified_tree.controllers.cache.page_tables import PageTables
from unified_tree.controllers.cache.sessions import shared_text
from unified_tree.controllers.cache.state_pages import StatePages
from unified_tree.declare.coverage import NO_LENGTH
from unified_tree.terms.errors import LeaseError, OutOfPagesError, StaleBoundaryError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease_tokens import Publication
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.controllers.cache.sessions import Session, Sessions, Turn
    from unified_tree.controllers.host.open_transfers import Load
    from unified_tree.controllers.weights.generations import Generation
    from unified_tree.declare.keys import Key
    from unified_tree.misses.causes import Miss, StoreLoss
    from unified_tree.nodes.node import Node
    from unified_tree.terms.results import Boundary, Match

RAN_WITHOUT: Final = "ran without an optional component"
LENGTH: Final = 0
COMPUTED: Final = 1
DOUBTED_AT: Final = 2


class Ask:
    """The arguments of a request; see `PrefixCache.acquire`.

    Attributes:
        may_rebuild: whether it may run tokens again before the boundary, where the cache does that.
        fills: take of windows only what this length needs, and save nothing on the way; see `PrefixCache.acquire_to_fill`.
    """

    __slots__ = (
        "arriving",
        "checkpoints",
        "fills",
        "key",
        "may_load",
        "may_rebuild",
        "priority",
        "reserve_tokens",
        "save_output",
    )

    def __init__(self, key: Key, reserve_tokens: int) -> None:
        self.key = key
        self.checkpoints: Sequence[int] = ()
        self.priority = 0
        self.save_output = False
        self.may_load = True
        self.may_rebuild = True
        self.reserve_tokens = reserve_tokens
        self.fills = 0
        self.arriving = False


class Row:
    """A lease's row in a batch.

    Attributes:
        index: which row of the batch's arrays.
        numbers: the lease's numbers, in the batch's memory; tables: the same for its tables, by component, as
            `PageTable.move_to` takes them.
    """

    __slots__ = ("index", "numbers", "tables")

    def __init__(self, index: int, numbers: memoryview, tables: dict[str, tuple[NDArray[np.int64], memoryview]]) -> None:
        self.index = index
        self.numbers = numbers
        self.tables = tables

    @abstractmethod
    def require_room(self, length_tokens: int) -> None:
        """Raise LeaseError if the row is too short for so many tokens."""

    @abstractmethod
    def plan(self) -> None:
        """Something has changed the lease: work out at which lengths it has something of its own to do."""

    @abstractmethod
    def leave(self) -> None:
        """The lease was released."""


class LeaseState:
    """The state behind a `Lease`, which only its cache changes. Arguments of its methods were checked.

    Attributes:
        tables, states, locks, tokens, published: its page tables, state pages (None without a `Point`), locks and tokens.
        load: its load back from host, until that has ended; None without one.
        has_ended: whether it was released.
        arrives: whether the state of its prompt comes from another server.
        save_output, saves_prompt_end: whether states and windows are kept by default behind its prompt, and at its end.
        turn: what its session knows of it; None for a lease that is no request.
        others: see Lease.
    """

    __slots__ = (
        "_arrival",
        "_computed",
        "_doubt",
        "_has_published",
        "_length",
        "_misses",
        "_numbers",
        "_resources",
        "_row",
        "arrives",
        "cached_tokens",
        "compute_from",
        "failure",
        "generation",
        "has_ended",
        "host_tokens",
        "load",
        "locks",
        "prompt_tokens",
        "published",
        "save_output",
        "saves_prompt_end",
        "states",
        "storage_tokens",
        "tables",
        "tokens",
        "turn",
    )

    def __init__(
        self,
        resources: CacheResources,
        generation: Generation,
        ask: Ask,
        boundary: Boundary,
        compute_from: int,
        load: Load | None,
    ) -> None:
        key, point = ask.key, resources.layout.point
        self._resources = resources
        self.has_ended = False
        self.tables = PageTables(resources)
        self.states = None if point is None else StatePages(resources, point, key.length)
        self.generation = generation
        self.locks = LeaseLocks(resources)
        self.tokens = LeaseTokens(key)
        self.published = PublishedTokens(
            resources,
            self.tokens,
            self.tables,
            self.states,
            self.locks,
            boundary,
            prompt_tokens=key.length,
            priority=ask.priority,
        )
        self.prompt_tokens = key.length
        self.cached_tokens = boundary.length
        self.compute_from = compute_from
        self._length = boundary.length
        self._computed = compute_from
        self._doubt = -1  # see `_doubted_at`
        self._numbers: memoryview | None = None  # all three, in a row of a batch
        self._row: Row | None = None
        self.save_output = ask.save_output
        self.saves_prompt_end = True
        self.load = load
        self.arrives = ask.arriving
        self.host_tokens = 0 if load is None else load.tokens
        self.storage_tokens = 0
        self.failure: str | None = None
        self._misses: LeaseMisses | None = None
        self.turn: Turn | None = None
        self._arrival: object = None  # as the policy returned it; named in the events of this request
        self._has_published = False

    @property
    def misses(self) -> list[Miss]:
        """Why its prompt's tokens from `compute_from` on have to be computed, ascending and without gaps.

        Empty if the tree keeps no memory of evictions, and for a lease that is no request.
        """
        return [] if self._misses is None else self._misses.parts(self._resources.ledger)

    @property
    def committed(self) -> int:
        """How many tokens were published."""
        return self.published.committed

    @property
    def boundary(self) -> Boundary:
        """The end of the committed tokens in the tree; valid as long as the lease."""
        return self.published.boundary

    @property
    def save_at(self) -> tuple[int, ...]:
        """See Lease."""
        return () if self.generation.has_ended else self.published.save_at

    @property
    def length(self) -> int:
        """How many tokens it has pages for."""
        return self._length if self._numbers is None else self._numbers[LENGTH]

    @property
    def computed(self) -> int:
        """How many tokens were run, as far as `commit` or `advance` said so."""
        return self._computed if self._numbers is None else self._numbers[COMPUTED]

    @property
    def row(self) -> int | None:
        """See Lease."""
        return None if self._row is None else self._row.index

    @property
    def is_arriving(self) -> bool:
        """See Lease."""
        return self.arrives and self.computed < self.prompt_tokens

    def begin(self, wanted: tuple[int, ...], without: Collection[str], *, rebuilds: bool) -> Boundary:
        """Lock the boundary it resumes from with the windows and states that are wanted (a load does that itself), allocate the
        running state, but for one that it is to do without, and fill the page tables.

        Returns that boundary by a name that is valid while it is locked. Raises OutOfPagesError or StaleBoundaryError; `end`
        then frees what was allocated.
        """
        loading, boundary = self.load is not None, self.published.boundary
        if without:
            self.locks.give_up(without)
        if not loading:
            boundary = self.published.boundary = self.locks.lock(boundary, wanted)
        if self.states is not None:
            self.states.start(without)
            if self.states.is_given_up:
                self.locks.give_up((self.states.name,))
            if self.arrives:
                source = b""
            elif loading:
                source = self._resources.tree.transfers.pages_with_loads(boundary, self.states.name).tobytes()
            else:
                source = self.locks.state_page(self._resources.state.layout.index[self.states.name])
            length = 0 if self.arrives else boundary.length
            self.states.begin_from(int.from_bytes(source, sys.byteorder) if source else None, length)
        self.tables.lay_out(boundary, self.compute_from, self.prompt_tokens, rebuilds=rebuilds and not loading, loading=loading)
        return boundary

    def admitted_by(self, found: Match, unloaded: tuple[int, str | None]) -> None:
        """Note the match that it was admitted by, why what the host has was not loaded, if it was not, and what the policy
        answered to its arrival.
        """
        state = self._resources.state
        if state.listener is not None:
            self._arrival, state.arrival = state.arrival, None
        if state.ghosts is not None:
            self._misses = LeaseMisses(found, unloaded)

    def book_misses(self, in_store: int, loss: StoreLoss | None) -> None:
        """It is a request: book what it has to compute; see LeaseMisses."""
        misses = self._misses
        if misses is not None:
            ledger, namespace = self._resources.ledger, self.tokens.owner
            misses.book(
                ledger, self.tokens.prompt, namespace, self.prompt_tokens, self.compute_from, self.committed, in_store, loss
            )

    def begin_turn(self, sessions: Sessions, session: Session | None) -> None:
        """It is a request, of a session or of none."""
        layout = self._resources.layout
        least = max(self.save_at, default=0) or shared_text(self.prompt_tokens, layout.page_size)
        has_saves = layout.needs_saves and not self.arrives
        self.turn = sessions.begin(session, self.cached_tokens, least, has_saves=has_saves)

    def _end_of_turn(self) -> Node | None:
        """The node where its turn's published text ends; None for nothing, if that was invalidated, or if no session follows
        the turn.
        """
        if self.turn is None or not self.turn.is_followed:
            return None
        try:
            return self._resources.locks.find(self.boundary)[0]
        except StaleBoundaryError:
            return None

    def plan_saves(self, lengths: tuple[int, ...], branches: tuple[int, ...], *, prompt_end: bool) -> None:
        """Save states and keep windows at these lengths, ascending; windows also at the end of the prompt, if that is said."""
        self.published.save_at = lengths
        self.published.branches = branches
        self.saves_prompt_end = prompt_end

    def note_prefetched(self, tokens: int) -> None:
        """Count the tokens of its load that were prefetched for it."""
        self.storage_tokens = min(self.host_tokens, tokens)

    def follow_load(self) -> None:
        """A part of its load has ended: use the tree's pages for that part, because its own may be free by now."""
        assert self.load is not None
        self.load.mark_seen()
        if self.load.error is None:
            self.published.boundary = self.load.boundary
            self._adopt_tree_pages()

    def end_load(self) -> None:
        """Its load has ended: use the tree's pages, or fail."""
        load, self.load = self.load, None
        assert load is not None
        self.failure = load.error
        if load.error is None:
            try:
                self.published.boundary = self.locks.lock(load.boundary, self._resources.layout.saved_indices)
            except StaleBoundaryError as error:
                self.locks.release()
                self.failure = f"what {self} loaded back is gone: {error}"
            else:
                self._adopt_tree_pages()
        if self.failure is not None:
            self.lose_load(load)
        load.release()

    def lose_load(self, load: Load) -> None:
        """Its load failed: the tokens of the load are misses."""
        self.host_tokens = self.storage_tokens = 0
        if self._misses is not None:
            self._misses.load_failed(self._resources.ledger, self.compute_from, load.tokens)

    def _adopt_tree_pages(self) -> None:
        loading, tree = self.load is not None, self._resources.tree
        self.tables.adopt_tree_pages(self.boundary, loading=loading)
        if self.states is not None and self.states.source is not None:
            pages = tree.transfers.pages_with_loads if loading else tree.pages
            self.states.source = int(pages(self.boundary, self.states.name)[0])

    def _abandon_load(self) -> None:
        """Stop waiting for its load."""
        load = self.load
        if load is not None:
            assert self._resources.controller is not None
            self._resources.controller.release(load)
            self.load = None

    @property
    def page_count(self) -> int:
        """How many pages of a path its tokens take."""
        return self._resources.layout.pages(self.length)

    def require_state(self, length_tokens: int) -> None:
        """Raise LeaseError if it cannot run up to so many tokens because its running state was published."""
        states = self.states
        if states is not None and states.running is None and not states.is_given_up and length_tokens > self.committed:
            raise LeaseError(
                f"{self} gave up its running state of {states.name!r} at {self.committed} tokens and cannot go on to "
                f"{length_tokens}; acquire another to go on"
            )

    def lacking(self) -> list[str]:
        """The optional components whose state at `cached_tokens` the cache lacked, or some of it."""
        lacking = self.tables.lacking(self.cached_tokens)
        if self.states is not None and (self.states.is_lost or self.states.is_given_up):
            lacking.append(self.states.name)
        return lacking

    def state_after(self, computed_tokens: int) -> int | None:
        """`state_tokens` once at least so many tokens are reported."""
        states, length = self.states, max(self.computed, computed_tokens)
        if states is None or states.running is None or states.is_lost:
            return None
        return length if length > self.cached_tokens and length > self._doubted_at else None

    def ends_at(self, length_tokens: int) -> bool:
        """Whether its running state must be that of so many tokens, which were run: they were reported, or it has no pages for
        more, nor had any since the last report.
        """
        computed = self.computed
        is_certain = length_tokens in (computed, self.length) and computed > self._doubted_at
        return is_certain and length_tokens == self.state_after(length_tokens)

    @property
    def _doubted_at(self) -> int:
        """How many tokens were reported as computed when it was truncated last; -1 if it never was."""
        return self._doubt if self._numbers is None else self._numbers[DOUBTED_AT]

    def grow(self, length_tokens: int, without: tuple[str, ...] = ()) -> None:
        """See PrefixCache.allocate."""
        state = self._resources.state
        state.at_once(self.tokens.owner)
        try:
            self.grow_now(length_tokens, without)
        finally:
            state.later()

    def grow_now(self, length_tokens: int, without: tuple[str, ...] = ()) -> None:
        """As `grow`, within a call that happens at one time."""
        length = self.length
        if length_tokens > length:
            self.require_state(length_tokens)
            if self._row is not None:
                self._row.require_room(length_tokens)
        page_count = self._resources.layout.pages(length_tokens)
        try:
            added = self.tables.grow(page_count, without)
        except OutOfPagesError:
            if not (without and self._resources.device.is_one_budget):
                raise
            self._go_without(without)  # what it gives up makes room
            added = self.tables.grow(page_count, without)
        if self.states is not None:
            before = self.states.saves.copy()
            try:  # there may be no memory for the names of more pages
                self.grow_states(length_tokens)
            except BaseException:
                self.states.restore(before)
                self.tables.shrink(added)
                raise
            self.states_grown()
        if length_tokens > length:
            self._note(length_tokens, self.computed)
        if without:
            self._go_without(without)
        if self._row is not None:
            self._row.plan()

    def _go_without(self, without: Sequence[str]) -> None:
        """As `give_up`, for a lease that was admitted before: it is counted."""
        had = len(self.given_up)
        self.give_up(without)
        if had < len(self.given_up):
            self._resources.counters.count_drop(RAN_WITHOUT)

    def give_up(self, without: Sequence[str]) -> None:
        """Free its own pages of optional components, and have and lock none of theirs any more."""
        self.locks.give_up(without)
        self.tables.give_up(without)
        if self.states is not None and self.states.name in without:
            self.states.give_up()

    @property
    def given_up(self) -> tuple[str, ...]:
        """See Lease."""
        states = self.states
        return (*self.tables.given_up, states.name) if states is not None and states.is_given_up else self.tables.given_up

    def grow_states(self, length_tokens: int) -> None:
        """Find pages for the states to be saved up to a length; whatever is raised, `StatePages.restore` undoes it."""
        states = self.states
        if states is None or states.running is None or states.is_lost:
            return
        length = max(self.length, length_tokens)
        if self.committed < self.prompt_tokens:
            computed = self.computed
            due = [
                at for at in self.save_at if self.committed < at <= length and at >= computed and at not in self.published.saved
            ]
            if due:
                states.allocate_saves(due)
        if self.save_output and length > self.prompt_tokens:
            states.follow_output(length, self.committed, self.computed)

    def states_grown(self) -> None:
        """Pages for states were found: free those that none of them needs any more."""
        states = self.states
        if states is not None and states.running is not None and self.save_output:
            states.free_superseded(self.length - self._resources.draft_tokens)

    def advance(self, computed_tokens: int) -> None:
        """See PrefixCache.advance."""
        computed = max(self.computed, computed_tokens)
        self._note(self.length, computed)
        layout, locks = self._resources.layout, self.locks
        if layout.windows:
            self.tables.free_windows_before(min(layout.floor_to_page(computed), self.windows_kept_from))
        is_past = locks.has_windows and computed > locks.windows_at
        if is_past and self.tables.windows_are_beyond(locks.windows_at // layout.page_size):
            locks.release_windows()
        if self._row is not None:
            self._row.plan()

    @property
    def windows_kept_from(self) -> int:
        """The first length in `save_at` that still needs its windows."""
        return NO_LENGTH if self.generation.has_ended else self.published.windows_kept_from

    def cut(self, length_tokens: int) -> None:
        """See PrefixCache.truncate."""
        self.tables.cut(self._resources.layout.pages(length_tokens))
        if self.states is not None:
            self.states.cut(length_tokens)
        computed = min(self.computed, length_tokens)
        if length_tokens < self.length:
            self._doubt_state(computed)
        self._note(length_tokens, computed)
        self.tokens.cut(length_tokens)
        if self._row is not None:
            self._row.plan()

    # In a batch.

    def join(self, row: Row) -> None:
        """Keep its numbers and its tables in a row of a batch from now on."""
        self._row = row
        self._move_to(row.numbers)
        for name, table in self.tables.items():
            table.move_to(*row.tables[name])

    def move_out(self) -> None:
        """Keep them in its own memory again. Idempotent."""
        self._move_to(None)
        for table in self.tables.values():
            table.move_to(np.empty(0 if table.is_given_up else table.size, np.int64), None)

    @property
    def is_in_batch(self) -> bool:
        """Whether it keeps its numbers in a row of a batch."""
        return self._row is not None

    def left(self) -> None:
        """It is in no batch any more."""
        self._row = None

    def _move_to(self, numbers: memoryview | None) -> None:
        length, computed = self.length, self.computed
        doubted_at = self._doubted_at
        if numbers is None:
            self._length, self._computed = length, computed
        else:
            numbers[LENGTH], numbers[COMPUTED] = length, computed
        self._numbers = numbers
        self._doubt_state(doubted_at)

    def _note(self, length: int, computed: int) -> None:
        """So many tokens have pages, and so many were run."""
        numbers = self._numbers
        if numbers is None:
            self._length, self._computed = length, computed
        else:
            numbers[LENGTH], numbers[COMPUTED] = length, computed

    def _doubt_state(self, computed: int) -> None:
        """The length of the running state is unknown until more tokens than so many are reported."""
        numbers = self._numbers
        if numbers is None:
            self._doubt = computed
        else:
            numbers[DOUBTED_AT] = computed

    def keep_only_for(self, length_tokens: int) -> None:
        """See PrefixCache.acquire_to_fill: of windows keep only what this length needs, and save nothing on the way."""
        self.published.save_at = ()
        if self.states is not None:
            self.states.is_lost = False  # it is not computed from what was there: a longer one is brought
            self._doubt_state(self.cached_tokens)
        self.tables.keep_windows_for(length_tokens)

    def expect(self, *, has_windows: bool) -> None:
        """The state of its prompt arrives, behind what it resumes from; windows whole if the tree lacks them there."""
        length = self.published.arriving = self.prompt_tokens
        self._doubt_state(length - 1)
        self.tables.expect(self._resources.layout.floor_to_page(length), length, has_windows=has_windows)

    def publish(self, publication: Publication) -> None:
        """See PrefixCache.commit."""
        if publication.piece is not None:
            self.tokens.extend(publication.piece)
        self._has_published = True
        published = self.published
        if self.generation.has_ended:
            self._resources.counters.count_drop("commit of what was invalidated")
        else:
            turn, tree = self.turn, self._resources.state
            tree.claimant, tree.arrival = None if turn is None else turn.session, self._arrival
            try:
                passed = published.publish(publication)
            finally:
                tree.claimant = tree.arrival = None
            if turn is not None:
                node = self._end_of_turn()
                if node is not None:
                    saved = node.end if node.resumable else max(published.saved, default=0)
                    turn.published(node, published.committed, saved)
            if passed and self._misses is not None:
                self._misses.unsaved(self._resources.ledger, published.boundary, passed)
        if self._misses is not None:
            self._misses.published(self._resources.ledger, published.committed)
        self.advance(publication.length)

    def end(self) -> None:
        """Free its private pages and release its locks. Idempotent, wherever it was interrupted before."""
        if self._misses is not None:
            self._misses.ended(self._resources.ledger, self.boundary)
        if self._arrival is not None and not self._has_published:  # it may be tried again
            self._resources.state.policy.withdrew(self._arrival)
        self._arrival = None
        if self.turn is not None:
            self.turn.ended(self._end_of_turn())
        self._abandon_load()
        self.tables.free()
        if self.states is not None:
            self.states.free()
        self.locks.release()
        if not self.has_ended:
            self.has_ended = True
            self.published.leave()
        row = self._row
        if row is not None:
            self.move_out()
            row.leave()
            self._row = None

    def __repr__(self) -> str:
        state = "released" if self.has_ended else f"{self.length} tokens, {self.committed} committed"
        return f"Lease({state}, cached {self.cached_tokens} of {self.prompt_tokens})"
