"""A lease: a request's read-only view of what it holds in the cache; and the open leases of a cache."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from unified_tree.inputs.arguments import integer
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import LeaseError, TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease_state import LeaseState
    from unified_tree.controllers.cache.page_tables import PageTable
    from unified_tree.controllers.cache.state_pages import StateCopy
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
    from unified_tree.controllers.host.open_transfers import Load
    from unified_tree.controllers.weights.generations import Generation
    from unified_tree.declare.keys import Key
    from unified_tree.misses.causes import Miss
    from unified_tree.terms.results import Boundary


class LeaseOwner(Protocol):
    """The owner of a lease, a PrefixCache."""

    def release(self, lease: Lease) -> None:
        """See PrefixCache.release."""
        ...


class HeldTable(Protocol):
    """The view of a page table: it holds the pages [first_held, size). Those from `private_from` on are the lease's own, the
    others the tree's. Of a component that was given up all three are one number, beyond every index.
    """

    @property
    def first_held(self) -> int:
        """The first page index that is held; those before are of a window that has passed them."""
        ...

    @property
    def private_from(self) -> int:
        """From this page index on the pages are the lease's own."""
        ...

    @property
    def size(self) -> int:
        """How many page indices there are."""
        ...

    def private(self) -> NDArray[np.int64]:
        """The lease's own pages, int64: a copy, also of a lease whose load failed."""
        ...


class Lease:
    """The state that a request holds in the cache, from `PrefixCache.acquire` to `release`; a context manager that releases it.

    A read-only view: calls of the cache change what it shows.
    """

    __slots__ = ("_cache", "_state")

    def __init__(self, cache: LeaseOwner, state: LeaseState) -> None:
        self._cache = cache
        self._state = state

    @property
    def prompt_tokens(self) -> int:
        """The length of the key it was acquired for."""
        return self._state.prompt_tokens

    @property
    def namespace(self) -> str:
        """The namespace of its key."""
        return self._state.tokens.owner

    @property
    def cached_tokens(self) -> int:
        """The prompt's first tokens whose state is in the cache."""
        return self._state.cached_tokens

    @property
    def compute_from(self) -> int:
        """The first token to run. Smaller than `cached_tokens` when windows are rebuilt by running tokens again. Such runs read
        the cached pages of path components and must not write them. The prompt's length where its state arrives.
        """
        return self._state.compute_from if not self._state.arrives else self._state.prompt_tokens

    @property
    def host_tokens(self) -> int:
        """Of the cached tokens, those loaded back from host."""
        return self._state.host_tokens

    @property
    def storage_tokens(self) -> int:
        """Of those loaded back from host, the tokens prefetched for this request."""
        return self._state.storage_tokens

    @property
    def known_tokens(self) -> int:
        """How many token ids it knows: those of the prompt, and those committed behind it."""
        return self._state.tokens.length

    @property
    def failure(self) -> str | None:
        """Why its load back failed; it can only be released then. None if nothing failed."""
        return self._state.failure

    @property
    def generation(self) -> Generation:
        """The weights version that its namespace was in when it was acquired."""
        return self._state.generation

    @property
    def tables(self) -> Mapping[str, HeldTable]:
        """The tables of its pages, by component with pages of its own; see `pages`."""
        return self._state.tables.by_component

    @property
    def given_up(self) -> tuple[str, ...]:
        """The optional components without which it runs: it has no pages of theirs until its end. Their pools were full when it
        was acquired, or `allocate` was told so; or the running state of an optional `Point` was published.
        """
        return self._state.given_up

    @property
    def misses(self) -> list[Miss]:
        """Why its prompt's tokens from `compute_from` on have to be computed, ascending and without gaps.

        Empty if the tree keeps no memory of evictions, and for a lease that is no request.
        """
        return self._state.misses

    @property
    def committed(self) -> int:
        """How many tokens were published."""
        return self._state.committed

    @property
    def boundary(self) -> Boundary:
        """The end of the committed tokens in the tree; valid as long as the lease."""
        return self._state.boundary

    @property
    def save_at(self) -> tuple[int, ...]:
        """Lengths at which a state should be saved (into `save_pages`) and a window kept, ascending. A run must stop there to
        save a state; a window is kept without that. Empty once its namespace was invalidated: nothing of it is published then.
        """
        return self._state.save_at

    @property
    def saved(self) -> set[int]:
        """Those of `save_at` whose window or state was published."""
        return self._state.published.saved

    @property
    def length(self) -> int:
        """How many tokens it has pages for."""
        return self._state.length

    @property
    def computed(self) -> int:
        """How many tokens were run, as far as `commit` or `advance` said so."""
        return self._state.computed

    @property
    def row(self) -> int | None:
        """Its row in a `DecodeBatch`; None outside of one."""
        return self._state.row

    @property
    def key(self) -> Key:
        """The key of all tokens that it knows. Cost: one copy of them, once there are any behind the prompt."""
        return self._state.tokens.plain()

    @property
    def tree_key(self) -> Key:
        """The same as the tree has it: of namespaces that share, another key. Cost: as `key`."""
        tokens = self._state.tokens
        return tokens.key(tokens.length)

    @property
    def state_page(self) -> int | None:
        """The running state's page. None without a `Point` component, and after a `commit` has published it: then the lease can
        publish what is computed, but cannot run further.
        """
        states = self._state.states
        return None if states is None else states.running

    @property
    def state_tokens(self) -> int | None:
        """Of how many tokens the running state is, as far as `advance` and `commit` have reported them as computed. None before
        that, when its page holds nothing new, and if it is unknown.

        It is unknown after a `truncate` until more tokens are reported: the run may have updated the state with the tokens that
        were removed. It stays unknown if the optional `Point` component had no state at `cached_tokens`.
        """
        return self._state.state_after(0)

    @property
    def state_copies(self) -> tuple[StateCopy, ...]:
        """Copies to make before running; while the lease is loading, make each after `wait_layer` of the state's layer.

        Empty once tokens behind `cached_tokens` were reported as computed: the sources may be gone by then.
        """
        state, states = self._state, self._state.states
        return () if states is None or state.computed > state.cached_tokens else states.copies()

    @property
    def save_pages(self) -> Mapping[int, int]:
        """Pages to save states in, by length, up to the length that `allocate` has reached. Behind the prompt there are at most
        two: for the last save point of the output, and for the one before while a rejection may still truncate to it.
        """
        states = self._state.states
        return {} if states is None else states.saves

    @property
    def write_from(self) -> Mapping[str, int]:
        """By component, the first token whose state is to be written; state computed for earlier tokens is discarded."""
        return self._state.tables.write_from

    @property
    def missing(self) -> Mapping[str, tuple[int, int]]:
        """Optional components in shared pages whose state is not there, as page indices [first, last): the cache lacked it at
        `acquire`, or a `commit` has put pages without it in place of the lease's. A `Point` in the page of another is missing
        from the state that the run begins with; then the indices are all those of the cached prefix.
        """
        return self._state.tables.missing

    @property
    def is_loading(self) -> bool:
        """Whether cached pages are still being loaded from host: call `PrefixCache.wait_layer` before each layer."""
        return self._state.load is not None

    @property
    def is_arriving(self) -> bool:
        """Whether the state of its prompt has not arrived yet: no `commit` or `advance` has reported the whole prompt. Fill the
        pages from `write_from` on, by component, and `state_page`; then commit.
        """
        return self._state.is_arriving

    @property
    def is_released(self) -> bool:
        """Whether it was released."""
        return self._state.has_ended

    @property
    def rebuilt_tokens(self) -> int:
        """How many cached tokens run again to rebuild windows."""
        return self.cached_tokens - self._state.compute_from

    def next_stop(self, computed_tokens: Any) -> int | None:  # unchecked: compiled code would refuse numpy's integers
        """The first length after `computed_tokens` at which a run must stop to save a state or a window; None if there is none.
        Raises LeaseError for what is no number of tokens. Cost: O(`save_at`).
        """
        computed = integer(computed_tokens, "computed_tokens", LeaseError)
        return next((length for length in self.save_at if length > computed and length not in self.saved), None)

    def pages(self, component: Any, first_page: Any = 0) -> NDArray[np.int64]:  # unchecked, as `next_stop`
        """The page ids of a component by page index, from index `first_page` on, int64; -1 for pages before a window.

        A component that shares pages has its owner's, and -1 where it is `missing`.

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
        if table.is_given_up:
            ids = np.full(self._state.page_count, -1, np.int64)[first_page:]
        else:
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
        if self._state.has_ended:
            raise LeaseError(f"{self} was released: its pages are the tree's, or free")
        if self._state.failure is not None:
            raise TransferError(self._state.failure)
        table = self._state.tables.get(component) if isinstance(component, str) else None
        if table is None:
            raise LeaseError(f"there is no page table for {repr_of(component)}; there are {', '.join(self.tables)}")
        return table

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._state.has_ended:
            self._cache.release(self)

    def __repr__(self) -> str:
        return repr(self._state)


class Leases:
    """Every lease from its `add` to its `remove`.

    Args:
        controller: loads back; None without a host tier.
        counters: counts events.
    """

    def __init__(self, controller: HybridCacheController | None, counters: CacheCounters) -> None:
        self._controller = controller
        self._counters = counters
        self._open: dict[Lease, LeaseState] = {}
        self._waiting: dict[Load, Lease] = {}
        self._changed: deque[Load] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._open)

    def require(self, lease: Any) -> LeaseState:  # any object, so that compiled code raises LeaseError too
        """The state of an open lease. Raises LeaseError for a lease that was released, or belongs to another cache."""
        try:
            state = self._open.get(lease)
            if state is not None:
                return state
            released = lease.is_released
        except (AttributeError, TypeError):
            raise LeaseError(f"a Lease is needed, not {repr_of(lease)}") from None
        raise LeaseError(f"{lease} was released before" if released else f"{lease} belongs to another cache")

    def add(self, lease: Lease, state: LeaseState) -> None:
        """A lease was made."""
        self._open[lease] = state
        if state.load is not None:
            self._waiting[state.load] = lease
            state.load.changed = self._changed

    def remove(self, lease: Lease, state: LeaseState) -> None:
        """A lease ends, perhaps before its load. If this is interrupted, it ends before that is raised."""
        try:
            self._remove(lease, state)
        except BaseException:
            self._remove(lease, state)
            raise

    def _remove(self, lease: Lease, state: LeaseState) -> None:
        """Idempotent, and so is each of its steps."""
        load = state.load
        if load is not None and self._waiting.pop(load, None) is not None and state.turn is not None:  # it is a request
            if load.error is not None:
                state.lose_load(load)
            self._book_load(state, load, has_failed=load.error is not None)
        state.end()
        self._open.pop(lease, None)

    def poll(self) -> None:
        """As `HybridCacheController.poll`, if there is one, and leases follow what has ended of their loads."""
        if self._controller is not None:
            try:
                self._controller.poll()
            finally:
                if self._changed:
                    self.follow_loads()

    def follow_loads(self) -> None:
        """Leases whose loads have ended switch to the tree's pages, or fail. Partly loaded ones switch for the loaded part.

        Cost: O(loads of which something has ended).
        """
        while self._changed:
            load = self._changed.popleft()
            lease = self._waiting.get(load)
            if lease is None:
                continue
            if load.has_ended:
                self._end_load(lease, load)
            elif load.has_unseen_end:
                self._open[lease].follow_load()

    def end_loads(self) -> None:
        """As `follow_loads`, when no load is open any more."""
        for load, lease in list(self._waiting.items()):
            self._end_load(lease, load)

    def wait_layer(self, lease: LeaseState, layer_id: int) -> None:
        """See PrefixCache.wait_layer."""
        if lease.load is not None:
            assert self._controller is not None
            self._controller.wait_layer(lease.load, layer_id)
        elif lease.failure is not None:
            raise TransferError(lease.failure)

    def wait(self, lease: LeaseState) -> None:
        """Return when a lease's load has ended. Raises TransferError if it failed."""
        if lease.load is not None:
            assert self._controller is not None
            if not lease.load.has_ended:
                self._controller.wait(lease.load)
            self.follow_loads()  # also others': pages that were not needed after all are free by now
        if lease.failure is not None:
            raise TransferError(lease.failure)

    def fail(self, namespace: str | None) -> None:
        """Fail the loads of an invalidated namespace of the tree, or of all. Cost: O(leases that wait)."""
        for load, lease in self._waiting.items():
            if namespace in (None, self._open[lease].tokens.namespace):
                load.fail(f"{lease} was loading what has been invalidated since")

    def _end_load(self, lease: Lease, load: Load) -> None:
        del self._waiting[load]
        state, observers = self._open[lease], self._counters.observers
        state.end_load()
        self._book_load(state, load, has_failed=state.failure is not None)
        if state.failure is not None:
            self._counters.count_drop("lease lost its load")
            if observers.all:
                observers.tell("load_failed", lease.namespace, load.tokens)
        if observers.all:
            observers.tell("load_ended", lease)

    def _book_load(self, state: LeaseState, load: Load, *, has_failed: bool) -> None:
        """The tokens of a load count as loaded, or as no hit. A request that leaves before its load ends was granted them."""
        if has_failed:
            self._counters.hit_tokens -= load.tokens
            self._counters.load_hit_tokens -= load.tokens
        else:
            self._counters.host_hit_tokens += state.host_tokens
            self._counters.storage_hit_tokens += state.storage_tokens
