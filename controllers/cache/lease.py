"""A lease: the pages and locks that a running request holds, and its progress.

Every page belongs at any moment to the free list, the tree or exactly one lease. A lease passes pages to the tree when computed
tokens are published (`PublishedTokens`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from unified_tree.controllers.cache.decode_row import NEVER, DecodeRow
from unified_tree.controllers.cache.lease_locks import LeaseLocks
from unified_tree.controllers.cache.lease_tokens import LeaseTokens, PublishedTokens
from unified_tree.controllers.cache.miss_ledger import LeaseMisses
from unified_tree.controllers.cache.page_tables import PageTables
from unified_tree.controllers.cache.state_pages import StateCopy, StatePages
from unified_tree.inputs.arguments import integer
from unified_tree.locks.locks import collect
from unified_tree.terms.errors import LeaseError, StaleBoundaryError, TransferError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.decode_batch import DecodeBatch
    from unified_tree.controllers.cache.page_tables import PageTable
    from unified_tree.controllers.cache.publication import Publication
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.controllers.host.load import Load
    from unified_tree.controllers.weights.generations import Generation
    from unified_tree.declare.keys import Key
    from unified_tree.misses.miss import Miss, StoreLoss
    from unified_tree.terms.results import Boundary, Match


LENGTH: Final = 0
COMPUTED: Final = 1
DOUBTED_AT: Final = 2


class LeaseOwner(Protocol):
    """The owner of a lease, a PrefixCache."""

    def release(self, lease: Lease) -> None:
        """See PrefixCache.release."""
        ...


class Lease:
    """The state that a request holds in the cache, from `PrefixCache.acquire` to `release`; a context manager that releases it.

    Its attributes are read-only; calls of the cache change them.

    Attributes:
        prompt_tokens: length of the key it was acquired for.
        cached_tokens: the prompt's first tokens whose state is in the cache.
        compute_from: the first token to run. Smaller than `cached_tokens` when windows are rebuilt by running tokens again.
            Such runs read the cached pages of path components and must not write them.
        host_tokens: of the cached ones, those loaded back from host; `storage_tokens`: of those, prefetched for this request.
        tables: page tables by component.
        tokens: those of the prompt, and those committed behind it.
        saves_prompt_end: whether windows are kept at the end of its prompt by default: where no checkpoints say where to.
        failure: why its load back failed; it can only be released then. None if nothing failed.
        generation: the weights version that its namespace was in when it was acquired.
    """

    __slots__ = (
        "_arrival",
        "_computed",
        "_doubt",
        "_length",
        "_locks",
        "_misses",
        "_numbers",
        "_published",
        "_resources",
        "_row",
        "_states",
        "cache",
        "cached_tokens",
        "compute_from",
        "failure",
        "generation",
        "host_tokens",
        "load",
        "prompt_tokens",
        "save_output",
        "saves_prompt_end",
        "storage_tokens",
        "tables",
        "tokens",
    )

    def __init__(
        self,
        cache: LeaseOwner,
        resources: CacheResources,
        generation: Generation,
        key: Key,
        boundary: Boundary,
        compute_from: int,
        *,
        priority: int,
        save_output: bool,
        load: Load | None = None,
    ) -> None:
        self.cache: LeaseOwner | None = cache
        self._resources = resources
        self._locks = LeaseLocks(resources)
        point = resources.layout.point
        self._states = None if point is None else StatePages(resources, point, key.length)
        self.tables = PageTables(resources)
        self.generation = generation
        self.tokens = LeaseTokens(key)
        self._published = PublishedTokens(
            resources,
            self.tokens,
            self.tables,
            self._states,
            self._locks,
            boundary,
            prompt_tokens=key.length,
            priority=priority,
        )
        self.prompt_tokens = key.length
        self.cached_tokens = boundary.length
        self.compute_from = compute_from
        self._length = boundary.length
        self._computed = compute_from
        self._doubt = -1  # see `_doubted_at`
        self._numbers: memoryview | None = None  # all three, in a row of a batch
        self._row: DecodeRow | None = None
        self.save_output = save_output
        self.saves_prompt_end = True
        self.load = load
        self.host_tokens = 0 if load is None else load.tokens
        self.storage_tokens = 0
        self.failure: str | None = None
        self._misses: LeaseMisses | None = None
        self._arrival: object = None  # what the policy is told if it leaves and has published nothing

    @property
    def misses(self) -> list[Miss]:
        """Why its prompt's tokens from `compute_from` on have to be computed, ascending and without gaps.

        Empty if the tree keeps no memory of evictions, and for a lease that is no request.
        """
        return [] if self._misses is None else self._misses.parts(self._resources.ledger)

    @property
    def committed(self) -> int:
        """How many tokens were published."""
        return self._published.committed

    @property
    def boundary(self) -> Boundary:
        """The end of the committed tokens in the tree; valid as long as the lease."""
        return self._published.boundary

    @property
    def save_at(self) -> tuple[int, ...]:
        """Lengths at which a state should be saved (into `save_pages`) and a window kept, ascending. Every run must stop
        there. None once its namespace was invalidated: nothing of it is published any more.
        """
        return () if self.generation.has_ended else self._published.save_at

    @property
    def saved(self) -> set[int]:
        """Those of `save_at` whose window or state was published."""
        return self._published.saved

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
        """Its row in a `DecodeBatch`; None outside of one."""
        return None if self._row is None else self._row.index

    @property
    def key(self) -> Key:
        """The key of all tokens that it knows. Cost: one copy of them, once there are any behind the prompt."""
        return self.tokens.key(self.tokens.length)

    @property
    def state_page(self) -> int | None:
        """The running state's page. None without a `Point` component, and after a `commit` has published it: then the lease can
        publish what is computed, but cannot run further.
        """
        return None if self._states is None else self._states.running

    @property
    def state_tokens(self) -> int | None:
        """Of how many tokens the running state is, as far as `advance` and `commit` have reported them as computed. None before
        that, when its page holds nothing new, and if it is unknown.

        It is unknown after a `truncate` until more tokens are reported: the run may have updated the state with the tokens that
        were removed. It stays unknown if the optional `Point` component had no state at `cached_tokens`.
        """
        return self._state_after(0)

    @property
    def state_copies(self) -> tuple[StateCopy, ...]:
        """Copies to make before running; while the lease is loading, make each after `wait_layer` of the state's layer.

        None once tokens behind `cached_tokens` were reported as computed: the sources may be gone by then.
        """
        return () if self._states is None or self.computed > self.cached_tokens else self._states.copies()

    @property
    def save_pages(self) -> Mapping[int, int]:
        """Pages to save states in, by length, up to the length that `allocate` has reached. Behind the prompt there are at most
        two: for the last save point of the output, and for the one before while a rejection may still truncate to it.
        """
        return {} if self._states is None else self._states.saves

    @property
    def write_from(self) -> Mapping[str, int]:
        """By component, the first token whose state is to be written; state computed for earlier tokens is discarded."""
        return self.tables.write_from

    @property
    def missing(self) -> Mapping[str, tuple[int, int]]:
        """Optional components in shared pages whose state the cache lacked, as page indices [first, last)."""
        return self.tables.missing

    @property
    def is_loading(self) -> bool:
        """Whether cached pages are still being loaded from host: call `PrefixCache.wait_layer` before each layer."""
        return self.load is not None

    @property
    def is_released(self) -> bool:
        """Whether it was released."""
        return self.cache is None

    @property
    def rebuilt_tokens(self) -> int:
        """How many cached tokens run again to rebuild windows."""
        return self.cached_tokens - self.compute_from

    def next_stop(self, computed_tokens: Any) -> int | None:  # unchecked: compiled code would refuse numpy's integers
        """The first length after `computed_tokens` at which a run must stop to save a state or a window; None if there is none.
        Cost: O(`save_at`).
        """
        return next((length for length in self.save_at if length > computed_tokens and length not in self.saved), None)

    def pages(self, component: Any, first_page: Any = 0) -> NDArray[np.int64]:  # unchecked, as `next_stop`
        """The page ids of a component by page index, from index `first_page` on, int64; -1 for pages before a window.

        A component that shares pages has its owner's, and -1 where its own state was not in the cache at `acquire`.

        Returns a snapshot: a read-only array that never changes and does not follow the lease. Pages in it that the lease has
        freed or swapped since may be free, or another request's. Ask for a new one, or for its new part, before each run:

        - `allocate` only adds at the end, `truncate` only removes there, `advance` only sets a window's front to -1.
        - `commit` may swap pages for the tree's: of a path none before page `committed // page_size`, `committed` being
          what it was before the call; of a window any.
        - While the lease `is_loading`, `poll` may swap all before `cached_tokens`.

        Raises LeaseError for a component without a page table and after `release`, TransferError if its load failed. Cost: a
        copy of the ids from `first_page` on. Of 128k tokens at a token a page that is 1 MiB and takes 28 microseconds, at 16
        tokens a page 2.3; the last page alone takes 1.5 at any length (one core of an AMD EPYC).
        """
        table = self._table(component)
        first_page = integer(first_page, "first_page", LeaseError)
        ids = table.slice(first_page, table.size).copy()
        if component in self.missing:
            first, last = self.missing[component]
            ids[max(0, first - first_page) : max(0, last - first_page)] = -1
        ids.setflags(write=False)
        return ids

    def page(self, component: Any, index: Any) -> int:  # unchecked, as `next_stop`
        """The page id at one index: the entry of `pages`, or -1 where that has none. Raises as `pages`. Cost: O(1)."""
        table = self._table(component)
        index = integer(index, "index", LeaseError)
        first, last = self.missing.get(component, (0, 0))
        return -1 if first <= index < last else table.page(index)

    def _table(self, component: Any) -> PageTable:
        if self.cache is None:
            raise LeaseError(f"{self} was released: its pages are the tree's, or free")
        if self.failure is not None:
            raise TransferError(self.failure)
        table = self.tables.get(component) if isinstance(component, str) else None
        if table is None:
            raise LeaseError(f"there is no page table for {component!r}; there are {', '.join(self.tables)}")
        return table

    # What its cache has it do: an underscore says that nobody else may. Arguments are right already.

    def _begin(self, *, rebuilds: bool) -> None:
        """Lock the boundary it resumes from (a load does that itself), allocate the running state, and fill the page tables.

        Raises OutOfPagesError or StaleBoundaryError; `_end` then frees what was allocated.
        """
        loading = self.load is not None
        if not loading:
            self._published.boundary = self._locks.lock(self.boundary, rebuilds=rebuilds)
        if self._states is not None:
            self._states.start()
            if loading:
                source = self._resources.tree.transfers.pages_with_loads(self.boundary, self._states.name).tobytes()
            elif self._locks.has_windows:
                parts = self._resources
                source = b"".join(collect(parts.state, parts.locks, self.boundary, self._states.name, Tier.DEVICE))
            else:
                source = b""
            self._states.begin_from(int.from_bytes(source, sys.byteorder) if source else None, self.boundary.length)
        self.tables.lay_out(
            self.boundary, self.compute_from, self.prompt_tokens, rebuilds=rebuilds and not loading, loading=loading
        )

    def _arrived(self, arrival: object) -> None:
        """Note what the policy answered to its arrival."""
        self._arrival = arrival

    def _admitted_by(self, found: Match, unloaded: tuple[int, str | None]) -> None:
        """Note the match that it was admitted by, and why what the host has was not loaded, if it was not."""
        if self._resources.ledger.is_on:
            self._misses = LeaseMisses(found, unloaded)

    def _book_misses(self, key: Key, in_store: int, loss: StoreLoss | None) -> None:
        """It is a request: book what it has to compute; see LeaseMisses."""
        misses = self._misses
        if misses is not None:
            ledger, namespace = self._resources.ledger, self.tokens.namespace
            misses.book(ledger, key, namespace, self.prompt_tokens, self.compute_from, self.committed, in_store, loss)

    def _plan_saves(self, lengths: tuple[int, ...], branches: tuple[int, ...], *, prompt_end: bool) -> None:
        """Save states and keep windows at these lengths, ascending; windows also at the end of the prompt, if that is said."""
        self._published.save_at = lengths
        self._published.branches = branches
        self.saves_prompt_end = prompt_end

    def _note_prefetched(self, tokens: int) -> None:
        """Count the tokens of its load that were prefetched for it."""
        self.storage_tokens = min(self.host_tokens, tokens)

    def _follow_load(self) -> None:
        """A part of its load has ended: use the tree's pages for that part, because its own may be free by now."""
        assert self.load is not None
        self.load.mark_seen()
        if self.load.error is None:
            self._published.boundary = self.load.boundary
            self._adopt_tree_pages()

    def _end_load(self) -> None:
        """Its load has ended: use the tree's pages, or fail."""
        load, self.load = self.load, None
        assert load is not None
        self.failure = load.error
        if load.error is None:
            try:
                self._published.boundary = self._locks.lock(load.boundary, rebuilds=False)
            except StaleBoundaryError as error:
                self._locks.release()
                self.failure = f"what {self} loaded back is gone: {error}"
            else:
                self._adopt_tree_pages()
        if self.failure is not None:
            self.host_tokens = self.storage_tokens = 0
            if self._misses is not None:
                self._misses.load_failed(self._resources.ledger, self.compute_from, load.tokens)
        load.release()

    def _adopt_tree_pages(self) -> None:
        loading, tree = self.load is not None, self._resources.tree
        self.tables.adopt_tree_pages(self.boundary, loading=loading)
        if self._states is not None and self._states.source is not None:
            pages = tree.transfers.pages_with_loads if loading else tree.pages
            self._states.source = int(pages(self.boundary, self._states.name)[0])

    def _abandon_load(self) -> None:
        """Stop waiting for its load."""
        load = self.load
        if load is not None:
            assert self._resources.controller is not None
            self._resources.controller.release(load)
            self.load = None

    def _require_state(self, length_tokens: int) -> None:
        """Raise LeaseError if it cannot run up to so many tokens because its running state was published."""
        if self._states is not None and self._states.running is None and length_tokens > self.committed:
            raise LeaseError(
                f"{self} gave up its running state of {self._states.name!r} at {self.committed} tokens and cannot go on to "
                f"{length_tokens}; acquire another to go on"
            )

    def _state_after(self, computed_tokens: int) -> int | None:
        """`state_tokens` once at least so many tokens are reported."""
        states, length = self._states, max(self.computed, computed_tokens)
        if states is None or states.running is None or states.is_lost:
            return None
        return length if length > self.cached_tokens and length > self._doubted_at else None

    def _ends_at(self, length_tokens: int) -> bool:
        """Whether its running state must be that of so many tokens, which were run: they were reported, or it has no pages for
        more, nor had any since the last report.
        """
        computed = self.computed
        is_certain = length_tokens in (computed, self.length) and computed > self._doubted_at
        return is_certain and length_tokens == self._state_after(length_tokens)

    @property
    def _doubted_at(self) -> int:
        """How many tokens were reported as computed when it was truncated last; -1 if it never was."""
        return self._doubt if self._numbers is None else self._numbers[DOUBTED_AT]

    def _grow(self, length_tokens: int) -> None:
        """See PrefixCache.allocate."""
        ages = self._resources.at_once(self.tokens.namespace)
        try:
            self._grow_now(length_tokens)
        finally:
            if ages is not None:
                ages.let_go()

    def _grow_now(self, length_tokens: int) -> None:
        length = self.length
        if length_tokens > length:
            self._require_state(length_tokens)
            if self._row is not None:
                self._row.require_room(length_tokens)
        added = self.tables.grow(self._resources.layout.pages(length_tokens))
        if self._states is not None:
            before = self._states.saves.copy()
            try:  # there may be no memory for the names of more pages
                self._grow_states(length_tokens)
            except BaseException:
                self._states.restore(before)
                self.tables.shrink(added)
                raise
            self._states_grown()
        if length_tokens > length:
            self._note(length_tokens, self.computed)
        if self._row is not None:
            self._row.plan()

    def _grow_states(self, length_tokens: int) -> None:
        """Find pages for the states to be saved up to a length; whatever is raised, `StatePages.restore` undoes it."""
        states = self._states
        if states is None or states.running is None or states.is_lost:
            return
        length = max(self.length, length_tokens)
        if self.committed < self.prompt_tokens:
            computed = self.computed
            due = [at for at in self.save_at if self.committed < at <= length and at >= computed and at not in self.saved]
            if due:
                states.allocate_saves(due)
        if self.save_output and length > self.prompt_tokens:
            states.follow_output(length, self.committed, self.computed)

    def _states_grown(self) -> None:
        """Pages for states were found: free those that none of them needs any more."""
        states = self._states
        if states is not None and states.running is not None and self.save_output:
            states.free_superseded(self.length - self._resources.draft_tokens)

    def _advance(self, computed_tokens: int) -> None:
        """See PrefixCache.advance."""
        computed = max(self.computed, computed_tokens)
        self._note(self.length, computed)
        layout, locks = self._resources.layout, self._locks
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
        return NEVER if self.generation.has_ended else self._published.windows_kept_from

    def _cut(self, length_tokens: int) -> None:
        """See PrefixCache.truncate."""
        self.tables.cut(self._resources.layout.pages(length_tokens))
        if self._states is not None:
            self._states.cut(length_tokens)
        computed = min(self.computed, length_tokens)
        if length_tokens < self.length:
            self._doubt_state(computed)
        self._note(length_tokens, computed)
        self.tokens.cut(length_tokens)
        if self._row is not None:
            self._row.plan()

    # In a batch.

    def _join(self, batch: DecodeBatch, index: int) -> DecodeRow:
        """Keep its numbers and its tables in a row of a batch from now on."""
        row = self._row = DecodeRow(batch, self._resources.layout, self, index, self._states, self._locks)
        self._move_to(row.numbers)
        for name, table in self.tables.items():
            table.move_to(*row.table(name))
        return row

    def _move_out(self) -> None:
        """Keep them in its own memory again. Idempotent."""
        self._move_to(None)
        for table in self.tables.values():
            table.move_to(np.empty(table.size, np.int64), None)

    @property
    def is_in_batch(self) -> bool:
        """Whether it keeps its numbers in a row of a batch."""
        return self._row is not None

    def _left(self) -> None:
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

    def _keep_only_for(self, length_tokens: int) -> None:
        """See PrefixCache.acquire_to_fill: of windows keep only what this length needs, and save nothing on the way."""
        self._published.save_at = ()
        if self._states is not None:
            self._states.is_lost = False  # it is not computed from what was there: a longer one is brought
            self._doubt_state(self.cached_tokens)
        self.tables.keep_windows_for(length_tokens)

    def _publish(self, publication: Publication) -> None:
        """See PrefixCache.commit."""
        end = self._resources.layout.floor_to_page(publication.length)
        if publication.piece is not None:
            self.tokens.extend(publication.piece)
        self._arrival = None
        if self.generation.has_ended:
            self._resources.counters.count_drop("commit of what was invalidated")
        else:
            passed = self._published.publish(publication, end)
            if passed and self._misses is not None:
                self._misses.unsaved(self._resources.ledger, self.boundary, passed)
        if self._misses is not None:
            self._misses.published(self._resources.ledger, self.committed)
        self._advance(publication.length)

    def _end(self) -> None:
        """Free its private pages and release its locks. Idempotent, wherever it was interrupted before."""
        if self._misses is not None:
            self._misses.ended(self._resources.ledger, self.boundary)
        if self._arrival is not None:  # it published nothing, and may be tried again
            self._resources.state.policy.withdrew(self._arrival)
            self._arrival = None
        self._abandon_load()
        self.tables.free()
        if self._states is not None:
            self._states.free()
        self._locks.release()
        if self.cache is not None:
            self.cache = None
            self._published.leave()
        row = self._row
        if row is not None:
            self._move_out()
            row.leave()
            self._row = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.cache is not None:
            self.cache.release(self)

    def __repr__(self) -> str:
        state = "released" if self.is_released else f"{self.length} tokens, {self.committed} committed"
        return f"Lease({state}, cached {self.cached_tokens} of {self.prompt_tokens})"
