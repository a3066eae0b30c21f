"""The prefix cache of a scheduler: leases over the tree and the page pools.

A request's life: `acquire` matches and locks; `allocate` provides pages before computing; `commit` publishes what was computed
and swaps duplicates for the tree's pages; `truncate` removes rejected draft tokens; `release` ends it. A `batch` takes the
decode steps of many leases at once. Every page belongs at any moment to the free list, the tree or exactly one lease.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from unified_tree.build import log_build
from unified_tree.controllers.cache.admission import Admission
from unified_tree.controllers.cache.decode_batch import DecodeBatch
from unified_tree.controllers.cache.hints import Hints
from unified_tree.controllers.cache.lease import Lease, Leases
from unified_tree.controllers.cache.lease_state import Ask
from unified_tree.controllers.cache.miss_ledger import MissLedger
from unified_tree.controllers.cache.publication import checked_optional, checked_publication
from unified_tree.controllers.cache.resources import CacheLayout, CacheResources
from unified_tree.controllers.cache.sessions import Sessions, session_name
from unified_tree.controllers.cache.sharing import Sharing
from unified_tree.controllers.cache.stats import CacheStats
from unified_tree.controllers.cache.tenant_stats import TenantCounters
from unified_tree.controllers.counters.cache_counters import CacheCounters
from unified_tree.controllers.host.host_tier import HostTier
from unified_tree.controllers.host.hybrid_cache_controller import HybridCacheController
from unified_tree.controllers.pages.shared_tier_pages import tier_pages
from unified_tree.controllers.ranks.rank_agreement import CONSENSUS_METHODS, MultiRank, SingleRank
from unified_tree.controllers.weights.weights import Weights
from unified_tree.declare.keys import Key, checked_key, not_a_key
from unified_tree.declare.settings import TreeSettings
from unified_tree.inputs.arguments import flag, integer, integer_items, integers, is_hashable, request_priority
from unified_tree.inputs.printable import repr_of
from unified_tree.misses.explain import explain
from unified_tree.native.chosen import coarse_monotonic_s
from unified_tree.policies.eviction_policy import PolicyFactory
from unified_tree.terms.errors import ConfigurationError, LeaseError, UnifiedTreeError
from unified_tree.terms.tier import Tier
from unified_tree.tree import UnifiedTree

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease_state import LeaseState
    from unified_tree.controllers.counters.observers import Observers
    from unified_tree.controllers.ranks import Consensus
    from unified_tree.controllers.storage_tier import StorageController, StorageTier
    from unified_tree.controllers.weights.generations import Generation
    from unified_tree.declare.block_budget import BlockBudget
    from unified_tree.declare.component import Component
    from unified_tree.declare.tenants import Tenants
    from unified_tree.misses.explain import Explanation
    from unified_tree.terms.results import EvictResult


class PrefixCache:
    """A prefix cache on device, with an optional host tier and store. Not thread-safe: one thread makes all calls. A scheduler
    calls it for each lease, or for many that decode together, as a `batch`. Prompts resume at a *boundary*, a length one can
    resume from: every required component is cached there.

    Args:
        components: the kinds of state; a composition's `components`.
        page_size: tokens a page.
        page_counts: device pages by component with pages of its own; one left out is unbounded.
        budget: the device's memory as one budget that all pools share, in place of `page_counts`: what one kind of state needs
            more of, the others give up. `Composition.budget` makes one. See docs/pools.md for what kernels need then.
        policy: eviction policy by name, or a factory; see UnifiedTree.
        rebuild: resume from a rebuilt window if that computes fewer tokens.
        save_limit: maximum number of lengths of its prompt at which a request saves states and windows.
        draft_tokens: how many tokens `truncate` may remove at no cost. A saved state of the output is freed this many tokens
            after the next one. If a longer run of drafts is rejected (or one longer than the save grid), the last saved state
            may be lost.
        host: a host tier behind the device; its engine is closed with the cache.
        storage: a store behind the host tier; see `attach_storage`.
        ranks: this rank's Consensus; closed with the cache. All ranks make the same calls in the same steps, each with its
            shard of the state. Copies and prefetches take effect in the step in which they have ended on all ranks.
        settings: the tree's bounds.
        max_versions: how many namespaces can have their own weights version; see `invalidate`.
        max_sessions: how many sessions can be open; beyond that the one unused for longest ends.
        max_hints: how many hints can be open; beyond that the oldest one expires.
        infer_sessions: whether a request without a session supersedes the states that it went on from, as a
            session's next turn does; see docs/sessions.md.
        time_s: the clock by which evictions are remembered; see UnifiedTree.
        tenants: groups of namespaces, and their shares of every pool on each tier; see docs/tenants.md.

    >>> import numpy as np
    >>> from unified_tree import Component, Key, Path
    >>> from unified_tree.controllers import PrefixCache
    >>> cache = PrefixCache([Component(name="full", coverage=Path())], page_size=2, page_counts={"full": 8})
    >>> tokens = np.arange(6)
    >>> with cache.acquire(Key(tokens)) as lease:
    ...     cache.allocate(lease, 6)
    ...     cache.commit(lease, tokens)
    >>> cache.acquire(Key(np.arange(7))).cached_tokens
    6
    """

    def __init__(
        self,
        components: Sequence[Component],
        page_size: int,
        page_counts: Mapping[str, int] | None = None,
        *,
        budget: BlockBudget | None = None,
        policy: str | PolicyFactory = "density",
        rebuild: bool = True,
        save_limit: int = 4,
        draft_tokens: int = 16,
        host: HostTier | None = None,
        storage: StorageTier | None = None,
        ranks: Consensus | None = None,
        settings: TreeSettings | None = None,
        max_versions: int = 16_384,
        max_sessions: int = 65_536,
        max_hints: int = 4096,
        infer_sessions: bool = False,
        time_s: Callable[[], float] = coarse_monotonic_s,
        tenants: Tenants | None = None,
    ) -> None:
        page_size = integer(page_size, "page_size", ConfigurationError, minimum=1)
        if page_counts is not None and not isinstance(page_counts, Mapping):
            raise ConfigurationError(f"page_counts must be a mapping from components to pages, not {repr_of(page_counts)}")
        counts = {
            name: integer(count, f"page_counts[{repr_of(name)}]", ConfigurationError, minimum=1)
            for name, count in (page_counts or {}).items()
        }
        self.rebuild = flag(rebuild, "rebuild", ConfigurationError)
        save_limit = integer(save_limit, "save_limit", ConfigurationError)
        draft_tokens = integer(draft_tokens, "draft_tokens", ConfigurationError)
        for name, given, kind in (("host", host, HostTier), ("settings", settings, TreeSettings)):
            if given is not None and not isinstance(given, kind):
                raise ConfigurationError(f"{name} must be a {kind.__name__}, not {repr_of(given)}")
        lacking = [] if ranks is None else [name for name in CONSENSUS_METHODS if not callable(getattr(ranks, name, None))]
        if lacking:
            raise ConfigurationError(f"ranks must be a Consensus; {repr_of(ranks)} has no method {', '.join(lacking)}")
        self.tree = UnifiedTree(
            components,
            page_size,
            policy=policy,
            page_counts=counts,
            host_page_counts=host.page_counts if host is not None else None,
            budget=budget,
            host_budget=host.budget if host is not None else None,
            settings=settings,
            time_s=time_s,
            tenants=tenants,
        )
        if host is not None:
            host.check_device(counts, [each.name for each in self.tree.state.layout.components if each.shares is None])
        self.layout = CacheLayout(self.tree.state.layout)
        self.ranks = SingleRank() if ranks is None else MultiRank(ranks)
        self.weights = Weights(self.tree, self.ranks, max_versions)
        self.counters = CacheCounters()
        self.ledger = MissLedger(self.tree.state)
        self.tenants = TenantCounters(self.tree.state, self.counters)
        self.sharing = Sharing(self.tree.state)
        self.device = tier_pages(self.tree, Tier.DEVICE, counts, self.counters)
        self.controller: HybridCacheController | None = None
        if host is not None:
            self.controller = HybridCacheController(self.tree, self.device, host, self.counters, self.ranks)
        self._leases = Leases(self.controller, self.counters)
        self.sessions = Sessions(
            self.tree.state,
            self.counters,
            integer(max_sessions, "max_sessions", ConfigurationError, minimum=1),
            infers=flag(infer_sessions, "infer_sessions", ConfigurationError),
        )
        most = integer(max_hints, "max_hints", ConfigurationError, minimum=1)
        self._resources = resources = CacheResources(
            tree=self.tree,
            layout=self.layout,
            device=self.device,
            controller=self.controller,
            ranks=self.ranks,
            counters=self.counters,
            tenants=self.tenants,
            sharing=self.sharing,
            ledger=self.ledger,
            sessions=self.sessions,
            draft_tokens=draft_tokens,
        )
        self.hints = Hints(resources, self, time_s, most)
        self.sessions.watcher = self.hints.ended
        self.device.relief = self.hints.relieve
        self._admission = Admission(self, resources, self._leases, self.weights, rebuild=self.rebuild, save_limit=save_limit)
        self._closed = False
        log_build()
        if storage is not None:
            self.attach_storage(storage)

    @property
    def storage(self) -> StorageController | None:
        """The controller that reads and writes the store behind the host tier; None without one."""
        return self._resources.storage

    @property
    def observers(self) -> Observers:
        """The observers of this cache: spans, seals, an inspector, models of other sizes, any number of them."""
        return self.counters.observers

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self.layout.page_size

    def acquire(
        self,
        key: Key,
        checkpoints: Sequence[int] = (),
        *,
        priority: int = 0,
        save_output: bool = True,
        request: Hashable | None = None,
        may_load: bool = True,
        reserve_tokens: int = 0,
        arriving: bool = False,
        session: Hashable | None = None,
    ) -> Lease:
        """A lease on the longest usable prefix of `key`, at most its length less one.

        Args:
            key: the prompt.
            checkpoints: lengths where later prompts are likely to branch off: ends of turns, of a shared system prompt. A
                length beyond the prompt counts as the prompt's end. With any, nothing is saved at the prompt's end by default.
            priority: for the policy of that name, from -2**53 to 2**53.
            save_output: whether later prompts may continue this one's output, so that states are worth saving there.
            request: the name under which this prompt was prefetched; that prefetch ends here.
            may_load: whether to load state back from host; False after a load has failed, so as not to wait for another.
            reserve_tokens: also allocate pages for so many tokens, as `allocate` would, so that a scheduler admits a request
                only if its prompt has room. Not suited to a chunked prompt longer than a window.
            arriving: the state of the whole prompt comes from another server. Then the cached path alone says what need not
                come: a window or a state that is not here does not shorten it. The lease has pages for the whole prompt, of
                windows what its end needs. Fill them from `write_from` on, and `state_page`, and commit; see
                `Lease.is_arriving`. Nothing is saved at `checkpoints`.
            session: whose turn it is; it opens with its first request, or with `open_session`. See docs/sessions.md.

        Optional components refuse nothing: where they have no pages for what is taken at once (the running state, and the
        reserved tokens), the lease is without them. `Lease.given_up` names them.

        Raises OutOfPagesError if there is no page for the running state or no room for the reserved tokens, InvalidKeyError for
        negative token ids, and LeaseError for other invalid arguments and after `close`. Nothing is changed then, except that
        pages may have been evicted. Cost: a match and a lock.
        """
        if self._closed:
            raise LeaseError("the cache is closed; it takes no more requests")
        _check_prompt(key)
        lengths = integer_items(checkpoints, "checkpoints", "a checkpoint", LeaseError)
        priority = request_priority(priority, LeaseError)
        save_output = flag(save_output, "save_output", LeaseError)
        may_load = flag(may_load, "may_load", LeaseError)
        reserve_tokens = integer(reserve_tokens, "reserve_tokens", LeaseError)
        if arriving is not False:
            arriving = flag(arriving, "arriving", LeaseError)
        if not is_hashable(request):
            raise LeaseError(f"a request's name must be hashable, not {repr_of(request)}")
        if session is not None:
            session = session_name(session)
        lease: Lease | None = None
        observers = self.counters.observers
        if observers.all:
            observers.tell("acquiring", key, request)
        try:
            self._resources.state.at_once(key.namespace)
            try:
                admitted = self.sharing.admit(key) if self.sharing.is_on else None
                ask = Ask(key if admitted is None else admitted.key, reserve_tokens)
                ask.checkpoints, ask.priority, ask.save_output = lengths, priority, save_output
                ask.may_load, ask.arriving = may_load, arriving
                lease, state = self._admission.admit(ask)
            finally:
                self._resources.state.later()
            self._book(state, key, request)
            if observers.all:
                observers.tell("acquired", lease, key)
            opened = None if session is None else self.sessions.open(session)
            if opened is not None:
                opened.namespace = key.namespace
                self.hints.returned(opened)
            state.begin_turn(self.sessions, opened)
            if admitted is not None:
                self.sharing.showed(admitted, lease.compute_from)
            return lease
        except BaseException as error:
            if lease is not None and not lease.is_released:
                self._leases.remove(lease, self._leases.require(lease))
                observers.tell("released", lease)
            if not isinstance(error, UnifiedTreeError):
                self.tree.locks.mend()
            if observers.all:
                observers.tell("refused", error)
            raise

    def _book(self, state: LeaseState, key: Key, request: Hashable | None) -> None:
        """A request was admitted: count it."""
        if not self.ranks.is_single_rank:
            node, length = state.boundary
            self.ranks.record(f"{key.length} {node} {length} {state.compute_from}")
        in_store, loss = 0, None
        if self.storage is not None and request is not None:
            requests = self.storage.prefetcher.requests
            in_store, loss = requests.due_pages(request) * self.page_size, requests.loss_of(request)
            state.note_prefetched(requests.stop_waiting(request))
        counters = self.counters
        if state.arrives:
            counters.arriving_tokens += key.length - state.cached_tokens
        else:
            state.book_misses(in_store, loss)
        if self.tenants.is_on:
            self.tenants.admitted(key.namespace, key.length, state.compute_from)
        counters.requests += 1
        counters.prompt_tokens += key.length
        counters.hit_tokens += state.compute_from
        if state.host_tokens:
            counters.load_hit_tokens += state.host_tokens
        if self.layout.optional and state.compute_from and not state.arrives:
            counters.resumed_without(state.lacking(), state.compute_from)
        counters.rebuilt_tokens += state.cached_tokens - state.compute_from

    def acquire_to_fill(self, key: Key, length_tokens: int) -> Lease:
        """A lease whose pages the caller fills up to a length with state that a prefix linker brings. For a request whose state
        another server computes, see `acquire(arriving=True)`.

        It resumes from what is on device, holds pages for `length_tokens` (of windows only what that length needs), saves
        nothing on the way, and is not counted as a request. Fill the pages from `cached_tokens` on, `commit` and `release`.

        Raises as `acquire`. Cost: as `acquire` and `allocate`.
        """
        if self._closed:
            raise LeaseError("the cache is closed; it takes no more requests")
        _check_prompt(key)
        length_tokens = integer(length_tokens, "length_tokens", LeaseError, minimum=1)
        self._resources.state.at_once(key.namespace)
        try:
            ask = Ask(self.sharing.in_tree(key), length_tokens)
            ask.fills, ask.may_load, ask.may_rebuild = length_tokens, False, False
            lease, _ = self._admission.admit(ask)
            return lease
        finally:
            self._resources.state.later()

    def open_session(self, name: Hashable, parent: Hashable | None = None) -> None:
        """Open a session before its first request, as a part of another: a subagent's, say. It ends with that one at the
        latest.

        No effect if it is open. Raises LeaseError if it is part of another than `parent`. Cost: O(sessions above it).
        """
        self.sessions.open(name, parent)

    def end_session(self, name: Hashable) -> None:
        """A session has ended, and all that are part of it: what only they could go on from is evicted first. No effect for an
        unknown one. Cost: O(nodes that only they could go on from, log n).
        """
        if is_hashable(name):
            self.sessions.end(name)

    def evict(self, needs: Mapping[str, int], tier: Tier = Tier.DEVICE) -> EvictResult:
        """Evict at least so many pages of each named pool, or as many as possible, and free them.

        `UnifiedTree.evict` frees nothing, and no counter sees what it evicts. Raises ConfigurationError for a tier that the
        cache does not have.
        """
        pages = self.device if tier is Tier.DEVICE else self.controller.host if self.controller is not None else None
        if pages is None or tier is Tier.STORAGE:
            raise ConfigurationError(f"this cache has no pages on {tier.name.lower()}")
        counts = integers(needs, "needs", ConfigurationError)
        self._resources.state.note_beneficiary(None)
        return pages.evict(counts)

    def attach_storage(self, tier: StorageTier) -> None:
        """Put a store behind the host tier, or replace the current one. Leases are not affected.

        Raises ConfigurationError, with nothing changed, without a host tier, for a store that cannot keep these components, and
        for one that was not opened for all their pools. Replacing a store blocks as `detach_storage`.
        """
        from unified_tree.controllers.storage_tier import StorageController, StorageTier, TierStore

        if not isinstance(tier, StorageTier):
            raise ConfigurationError(f"storage must be a StorageTier, not {repr_of(tier)}")
        if self.controller is None:
            raise ConfigurationError("a store needs a host tier before it: pass `host`, too")
        if self.storage is not None and self.storage.tier is tier:
            raise ConfigurationError("this store is attached already; to attach it anew would close its engine")
        shared = TierStore(self.tree, self.controller.host, tier, self.counters, self.weights, self.ranks)
        attached = StorageController(shared)
        self.detach_storage()
        self.weights.attached(tier.weights_version)
        self._resources.storage = self.controller.storage = attached

    def detach_storage(self) -> None:
        """Detach the store: prefetches and writes to it are cancelled, and the engine is closed. No effect without a store.

        Blocks until the store's running calls have returned. The store is detached even if closing it raises.
        """
        if self.storage is not None:
            assert self.controller is not None
            storage, self._resources.storage = self.storage, None
            self.controller.storage = None
            storage.close()

    def prefetch(self, request: Hashable, key: Key) -> bool:
        """Start to fetch from the store to host what it has of an arrived prompt, at most its length less one token.

        Args:
            request: any name, for `prefetched`, `cancel` and `acquire`. A request has one prefetch; a new one replaces it.

        Returns whether there is something to wait for. Never blocks. A request that never calls again needs no cleanup: its
        prefetch ends by itself, and its outcome is forgotten later. Raises RankError, with nothing started, if ranks are gone.
        Cost: as a match.
        """
        if self.storage is None:
            return False
        observers = self.counters.observers
        if observers.all:
            observers.tell("prefetching", request, key)
        started = self.storage.prefetch(request, self.sharing.in_tree(key))
        if started and observers.all:
            observers.tell("prefetch_started", request, key)
        return started

    def prefetched(self, request: Hashable) -> bool:
        """Whether a request should call `acquire` now: its prefetch has ended, or by policy it waits no longer.

        If not, ask again after the next `poll`. Cost: O(1).
        """
        is_ready = self.storage is None or self.storage.prefetcher.requests.is_ready(request)
        if is_ready and self.counters.observers.all:
            self.counters.observers.tell("prefetch_ready", request)
        return is_ready

    def prefetched_tokens(self, request: Hashable) -> int:
        """How many tokens a request's prefetch has added to its prefix on host. 0 after `acquire`, and after more than
        `PrefetchPolicy.max_outcomes` later prefetches have ended. Cost: O(1).
        """
        return 0 if self.storage is None else self.storage.prefetcher.requests.tokens_of(request)

    def cancel(self, request: Hashable) -> None:
        """Cancel the prefetch of a request. No effect for an unknown one. Cost: O(1)."""
        if self.storage is not None:
            if self.counters.observers.all:
                self.counters.observers.tell("prefetch_cancelled", request)
            self.storage.prefetcher.requests.cancel(request)

    def poll(self) -> None:
        """Apply finished transfers and start due ones; call it once per scheduler step. An inspector does a slice of its work.

        Leases whose loads have ended get the tree's pages. Never blocks without ranks; with them it waits for one message each.
        Cost: O(transfers ended and started).
        """
        self._leases.poll()
        if self.storage is not None:
            self.storage.poll()
        if self.hints.has_work:
            self.hints.poll()
        if self.tenants.is_on:
            self._hold_caps()
        if self.counters.observers.all:
            self.counters.observers.tell("polled")

    def wait_layer(self, lease: Lease, layer_id: int) -> None:
        """Wait before running a model layer: return once the lease's load has landed for all layers up to this one.
        For a layer that no component has, those below count. Returns at once if nothing loads.

        Raises TransferError if the load failed; release the lease then.
        """
        state = self._leases.require(lease)
        self._leases.wait_layer(state, integer(layer_id, "layer_id", LeaseError))

    def allocate(self, lease: Lease, length_tokens: int, *, without: Sequence[str] = ()) -> None:
        """Grow the lease to cover the tokens [0, length_tokens), evicting as needed. No effect if it covers them already. To
        grow many leases at a time, put them into a `batch`.

        Args:
            without: optional components with pages of their own (a draft, say) that the lease gives up until its end: it frees
                its own pages of theirs, needs and has none any more, and publishes nothing of theirs from here on. See
                `Lease.given_up`.

        Raises OutOfPagesError if a pool has too few pages; `component` of the error names it. Raises LeaseError if
        `length_tokens` is invalid, or larger than the computed length after the running state was published, or if
        `without` names anything else. Nothing is changed then, but in a shared budget that is short, where what is given up
        makes room, the lease has given it up. Cost: O(new pages), and O(log n) a victim.
        """
        state = self._leases.require(lease)
        length_tokens = integer(length_tokens, "length_tokens", LeaseError)
        state.grow(length_tokens, checked_optional(self.layout, without))

    def can_allocate(self, lease: Lease, length_tokens: int, *, without: Sequence[str] = ()) -> bool:
        """Whether every pool has enough free and evictable pages for `allocate` now. Changes nothing.

        An evictable page may have locked descendants; then `allocate` may still raise. Pages that `without` gives up are not
        counted, so in a shared budget `allocate` may succeed where this says no. Cost: O(components).
        """
        state = self._leases.require(lease)
        page_count = self.layout.pages(integer(length_tokens, "length_tokens", LeaseError))
        return self.device.fits(state.tables.needs(page_count, checked_optional(self.layout, without)))

    def batch(self, max_leases: int, max_tokens: int) -> DecodeBatch:
        """Rows for leases that decode together, so that a step of all of them is a few array operations.

        Args:
            max_leases: how many rows.
            max_tokens: the longest lease in it; each row has room for so many tokens' page ids. Memory is used as far as rows
                are written.

        Raises LeaseError for other than positive integers, and if there is no memory for so many.
        """
        return DecodeBatch(self._resources, self._leases, max_leases, max_tokens)

    def advance(self, lease: Lease, computed_tokens: int) -> None:
        """Report that the tokens [0, computed_tokens) are computed. Frees window pages that neither the next token nor a
        pending save needs. `commit` does this too. No effect for fewer tokens than before.

        Raises LeaseError, with nothing changed, for more tokens than it has pages for. Cost: O(pages freed).
        """
        state = self._leases.require(lease)
        computed_tokens = integer(computed_tokens, "computed_tokens", LeaseError)
        if computed_tokens > state.length:
            raise LeaseError(f"{lease} has pages for {state.length} tokens, so {computed_tokens} cannot be computed")
        state.require_state(computed_tokens)
        self._leases.wait(state)
        state.advance(computed_tokens)

    def commit(
        self,
        lease: Lease,
        tokens: NDArray[np.integer[Any]] | Sequence[int] | int,
        states: Mapping[int, int] | None = None,
        *,
        begin: int = 0,
        without: Sequence[str] = (),
        resumable: bool | None = None,
    ) -> None:
        """Publish the whole pages of what has been computed; the partial page stays the lease's own.

        Duplicates are freed, the table is rewritten with the tree's pages, and the lock moves to the new end. Windows are kept
        at the lengths in `save_at`, and at the end. If the state of such a length is missing, no later prompt can resume there,
        and that is counted in `CacheStats.drops`.

        Args:
            tokens: the sequence computed so far, from token `begin` on. Or its length, if it is within the prompt and what was
                committed since; that saves passing and comparing the tokens again.
            begin: the first token given; the lease knows those before, from the prompt and from commits.
            states: pages that hold states, by length: each from `save_pages`, or the running state's page. That page's length
                is the most tokens reported as computed, those of this commit included; at another length, or if it is unknown
                (see `Lease.state_tokens`), the page is refused. The lease cannot run further after its running state was
                published. Of the states behind the prompt only the last is published.
            without: components that were not computed (a draft, say), no required path. No more of theirs is published up to
                this length; of a path with pages of its own, nothing behind it either.
            resumable: whether to keep the windows at the end; None: only once the whole prompt is computed.

        It may be of fewer tokens than are reported as computed, but not than are committed (while a window is rebuilt, than
        are reported). Raises LeaseError for that, LeaseError, InsertError or InvalidKeyError for tokens, pages or names that
        are not this lease's, and TransferError if its load failed. Nothing is changed then. Cost: O(tokens given, and new
        pages), whatever lies before them, for each kept length.
        """
        state, observers = self._leases.require(lease), self.counters.observers
        if observers.all:
            observers.tell("committing", lease)
        try:
            checked = checked_publication(state, self.layout, tokens, states, without, resumable, begin)
            self._leases.wait(state)
            state.publish(checked)
        except BaseException as error:
            if observers.all:
                observers.tell("committed", lease, states, without, error)
            raise
        if self.tenants.is_on:
            self._hold_caps()
        if observers.all:
            observers.tell("committed", lease, states, without, None)

    def preempt(
        self,
        lease: Lease,
        tokens: NDArray[np.integer[Any]] | Sequence[int] | int,
        states: Mapping[int, int] | None = None,
        *,
        without: Sequence[str] = (),
    ) -> int:
        """Publish everything computed so that the same request can resume there, and release the lease.

        Windows are kept at the end of the whole pages. The running state is kept if `tokens` end on the save grid, and if it is
        known to be theirs: they are as many as `Lease.state_tokens`, or all that the lease has pages for. Otherwise the request
        resumes from its last saved state; to avoid that, stop a prefill at a multiple of `layout.state_grid_tokens` before you
        preempt it.

        Args:
            tokens: as in `commit`, like `states` and `without`. If fewer than are committed, or while the lease is arriving,
                nothing more is published.

        Returns the published length; if a window or a state is not kept there, the next `acquire` resumes earlier. Raises as
        `commit`, and then does not release the lease. Cost: as `commit`.
        """
        state = self._leases.require(lease)
        checked = checked_publication(state, self.layout, tokens, states, without, True, ends=True)
        if state.is_arriving:
            committed = lease.committed
            self.release(lease)
            return committed
        length, states, committed, page = checked.length, checked.states, lease.committed, lease.state_page
        is_rebuilt = lease.rebuilt_tokens > 0 and lease.computed >= length  # else its windows may not have been written
        is_new = length >= committed and (length > lease.cached_tokens or is_rebuilt)
        is_lacking = length not in states and self.layout.point not in checked.without
        if is_new and is_lacking and page is not None and length % self.layout.state_grid_tokens == 0 and state.ends_at(length):
            states = {**states, length: page}
        if is_new or states:
            kept = tokens if length >= committed else committed
            self.commit(lease, kept, states, without=checked.without, resumable=is_new)
        committed = lease.committed
        self.release(lease)
        return committed

    def truncate(self, lease: Lease, length_tokens: int) -> None:
        """Remove the tokens from `length_tokens` on, which were never committed (rejected draft tokens).

        Raises LeaseError, with nothing changed, if some of them were committed or are arriving. Cost: O(pages freed).
        """
        state = self._leases.require(lease)
        length_tokens = integer(length_tokens, "length_tokens", LeaseError)
        least = lease.committed if not state.is_arriving else lease.prompt_tokens
        if not least <= length_tokens <= lease.length:
            raise LeaseError(f"{lease} can be cut to between {least} and {lease.length} tokens, not {length_tokens}")
        self._leases.wait(state)
        state.cut(length_tokens)

    def release(self, lease: Lease) -> None:
        """End a lease: committed pages stay in the tree, all others are freed.

        Raises LeaseError if it was released before or belongs to another cache.
        """
        state, observers = self._leases.require(lease), self.counters.observers
        if observers.all:
            observers.tell("releasing", lease)
        self._leases.remove(lease, state)
        if self.tenants.is_on:
            self._hold_caps()
        if observers.all:
            observers.tell("released", lease)

    def _hold_caps(self) -> None:
        """Evict what groups of namespaces hold beyond their caps. Cost: O(components) if no group does."""
        self.device.hold_caps()
        if self.controller is not None:
            self.controller.host.hold_caps()

    def invalidate(self, namespace: str | None = None, weights_version: str | None = None) -> None:
        """Start a new weights version, for one namespace or for all: state computed before is never matched again. Namespaces
        that share are invalidated together.

        Args:
            weights_version: the new version's name in a store; all caches that use the name share the pages stored from now on.
                Without a name only this cache, with all its ranks, finds them, until the next invalidation or its end.

        Open leases keep their pages, but what they commit is not published; those that wait for a load fail. The tree's invalid
        pages are freed as pages are needed. With more than `max_versions` namespaces with their own versions, the one
        invalidated longest ago loses its name in the store, and some others with it.

        Raises ConfigurationError, with nothing changed, for a name or a namespace that is not a string. Cost: O(1), and
        O(leases that are loading); for all namespaces, O(namespaces in use).
        """
        for what, given in (("a namespace", namespace), ("a weights version", weights_version)):
            if given is not None and type(given) is not str:
                raise ConfigurationError(f"{what} is named by a string, not by {repr_of(given)}")
        for each in self.sharing.namespaces(namespace):
            self.weights.invalidate(each, weights_version)
            self._leases.fail(each)
        if self.counters.observers.all:
            self.counters.observers.tell("invalidated", namespace)

    def generation(self, namespace: str) -> Generation:
        """The current weights version of a namespace; an invalidation ends it. Raises LeaseError for what is no string.
        Cost: O(1).
        """
        if not isinstance(namespace, str):
            raise LeaseError(f"a namespace must be a string, not {repr_of(namespace)}")
        return self.weights.generations.current(self.sharing.namespaces(namespace)[-1] or namespace)

    def drain(self) -> None:
        """Finish and apply all transfers, prefetches and writes to the store that have been started or are due. Blocks."""
        if self.controller is not None:
            self.controller.drain()
            self._leases.follow_loads()
            if self.storage is not None:
                self.storage.drain()
            self.hints.poll()
            if self.hints.loading:  # what has come from the store
                self.controller.drain()
                self.hints.poll()

    def flush(self) -> None:
        """Copy every boundary to host, as far as there is room, and to the store. Blocks until that is done."""
        if self.controller is not None:
            self.controller.flush()
            self._leases.follow_loads()
            self.hints.poll()
            if self.storage is not None:
                self.storage.flush()

    def close(self) -> None:
        """Stop all transfers, end all hints, and refuse new requests and hints. Open leases keep their device pages and can be
        released; those that wait for a load fail. Idempotent.

        It does not wait for other ranks. The store, the engine and the consensus are all closed even if one of them raises; the
        error is raised at the end.
        """
        self._closed = True
        with ExitStack() as closing:  # the last first
            closing.callback(self.counters.observers.tell, "closed")
            closing.callback(self.ranks.close)
            if self.controller is not None:
                closing.callback(self._leases.end_loads)
                closing.callback(self.controller.close)
            closing.callback(self.hints.close)
            closing.callback(self.detach_storage)

    @property
    def lease_count(self) -> int:
        """The number of open leases."""
        return len(self._leases)

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The open leases, in the order in which they were acquired. Cost: O(leases)."""
        return tuple(self._leases)

    def explain(self, key: Key) -> Explanation:
        """Why a prompt would not resume further, and which of its tokens another request computes now; see
        UnifiedTree.explain.
        """
        checked_key(key)
        return explain(self.tree.state, self.sharing.in_tree(key), self.ledger.in_flight)

    def stats(self) -> CacheStats:
        """A snapshot of the totals so far and of the pools. Cost: O(components)."""
        return CacheStats.of(self._resources, len(self._leases))


def _check_prompt(key: Key) -> None:
    if not isinstance(key, Key):
        raise LeaseError(not_a_key(key))
    if key.length == 0:
        raise LeaseError(f"a prompt has at least one token, not {key}")
