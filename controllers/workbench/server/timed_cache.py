"""PrefixCache as the simulated server calls it: timed, and with pages that are filled and compared where they hold bytes; and
the request that it is called for, on its way through the server."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Protocol

from unified_tree.controllers.cache.stats import BudgetStats
from unified_tree.controllers.workbench.traces.workload import NO_CHAIN
from unified_tree.declare.keys import GROUP_TOKENS, Key, packed_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.workbench.server.verified_pages import VerifiedPages
    from unified_tree.controllers.workbench.traces.workload import Int64s, Request, Workload


class PoolsInUse:
    """The pools of one cache. Each question costs O(pools).

    Args:
        cache: asked; its pools stay the same objects as long as it lives.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._manager = cache.device
        self._device = {name: (allocator, cache.tree.pool(name)) for name, allocator in cache.device.allocators.items()}
        self._host = {} if cache.controller is None else dict(cache.controller.host.allocators)
        self._paths = [self._device[name] for name in cache.layout.paths]

    def device_pages(self) -> dict[str, int]:
        """Pages in use on the device, by component with pages of its own."""
        return {name: allocator.used_pages for name, (allocator, _) in self._device.items()}

    def host_pages(self) -> dict[str, int]:
        """Pages in use on host, likewise."""
        return {name: allocator.used_pages for name, allocator in self._host.items()}

    def held_pages(self) -> dict[str, int]:
        """Device pages that running requests use: their own, and those of the tree that they lock."""
        return {
            name: allocator.used_pages - pool.used_pages + pool.protected_pages
            for name, (allocator, pool) in self._device.items()
        }

    def free_path_pages(self) -> int:
        """Pages that every path pool could give now, evicting all that no request holds; a very large number without limits."""
        return min(allocator.free_pages + pool.used_pages - pool.protected_pages for allocator, pool in self._paths)

    def free_blocks(self) -> int | None:
        """Blocks of the budget that all pools share, likewise; None where they share none. Cost: O(pools)."""
        budget = BudgetStats.of(self._manager)
        return None if budget is None else budget.total - budget.used + budget.evictable


class Stopwatch:
    """Nanoseconds inside its `with` blocks, errors included."""

    def __init__(self) -> None:
        self.ns = 0

    def __enter__(self) -> None:
        self._start_ns = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.ns += perf_counter_ns() - self._start_ns


class TracedSessions:
    """The sessions of a workload, as an engine would tell its cache of them: a chain of requests is one.

    Args:
        workload: whose requests know their chains.
    """

    def __init__(self, workload: Workload) -> None:
        self._last = {request.chain: request.index for request in workload.requests}

    def begin(self, cache: PrefixCache, request: Request) -> int | None:
        """The session of a request, opened as a part of its parent's; None for a request on its own."""
        if request.chain == NO_CHAIN:
            return None
        if cache.sessions.find(request.chain) is None:
            parent = request.parent_chain
            cache.open_session(request.chain, parent if cache.sessions.find(parent) is not None else None)
        return request.chain

    def end(self, cache: PrefixCache, request: Request) -> None:
        """A request is over."""
        if request.index == self._last.get(request.chain):
            cache.end_session(request.chain)
        elif cache.sessions.find(request.chain) is not None:
            cache.hints.retain(request.chain)


class TimedCache:
    """The calls of a scheduler. What the library itself takes goes to each request's stopwatch; building its key counts, too.

    Args:
        cache: what is timed.
        pages: fills and compares the pages of leases; None where they have no bytes. Its time is nobody's.
        max_tokens: a longer sequence never fits; None for no limit.
        room: how many tokens of path so many blocks of a shared budget hold.
        grown: called when a lease has got pages; that is when running requests hold most.
        sessions: of the workload, for a cache that is told of them; None for one that is not.
        packs: whether keys are packed (`packed_key`); blocks and pages must be whole groups then, and nothing but the tree may
            look at tokens.

    Attributes:
        polled: the time in `poll` and `prefetched`, which are no one request's.
        pools: what of the cache's pools is in use.
    """

    def __init__(
        self,
        cache: PrefixCache,
        pages: VerifiedPages | None = None,
        max_tokens: int | None = None,
        grown: Callable[[], None] | None = None,
        room: Callable[[int], int] | None = None,
        sessions: TracedSessions | None = None,
        *,
        packs: bool = False,
    ) -> None:
        self.cache = cache
        self.max_tokens = max_tokens
        self.polled = Stopwatch()
        self.pools = PoolsInUse(cache)
        self._pages = pages
        self._packs = packs
        self._grown = grown
        self._room = room
        self._sessions = sessions

    def fits(self, entry: ServedRequest) -> bool:
        """Whether prompt and answer can ever fit."""
        return self.max_tokens is None or entry.total <= self.max_tokens

    def available_tokens(self) -> int:
        """Tokens that every path pool could take now, evicting all that nobody holds. Not timed: a scheduler's own sum."""
        if self._room is not None and (blocks := self.pools.free_blocks()) is not None:
            return self._room(blocks)
        return self.pools.free_path_pages() * self.cache.page_size

    def poll(self) -> None:
        """`PrefixCache.poll`."""
        with self.polled:
            self.cache.poll()

    def prefetch(self, entry: ServedRequest) -> bool:
        """`PrefixCache.prefetch` of its prompt."""
        tokens = entry.prompt()
        with entry.spent:
            return self.cache.prefetch(entry.request.index, Key(tokens, entry.request.namespace))

    def prefetched(self, entry: ServedRequest) -> bool:
        """`PrefixCache.prefetched`."""
        with self.polled:
            return self.cache.prefetched(entry.request.index)

    def fetched(self, entry: ServedRequest) -> None:
        """A prompt's prefetch is over: compare what there is of it."""
        if self._pages is not None:
            self._pages.fetched(entry.prompt(), entry.request.namespace)

    def tokens(self, request: Request) -> Int64s:
        """The token ids of a request's prompt and answer, as `acquire` takes them."""
        return request.tokens(GROUP_TOKENS if self._packs else 1)

    def acquire(self, entry: ServedRequest, tokens: Int64s, checkpoints: tuple[int, ...], *, named: bool) -> Lease:
        """`PrefixCache.acquire` of its prompt. `named`: something may have been fetched for the request."""
        request, target = entry.request, entry.target
        with entry.spent:
            return self.cache.acquire(
                packed_key(tokens, target, request.namespace) if self._packs else Key(tokens[:target], request.namespace),
                checkpoints,
                priority=request.priority,
                save_output=request.answer_runs is not None,
                request=request.index if named else None,
                session=None if self._sessions is None else self._sessions.begin(self.cache, request),
            )

    def ended(self, entry: ServedRequest) -> None:
        """The request is over: with its last turn a session ends, and else its tool runs."""
        if self._sessions is not None:
            with entry.spent:
                self._sessions.end(self.cache, entry.request)

    def resumed(self, entry: ServedRequest) -> None:
        """What the entry's lease resumes from is on device."""
        if self._pages is not None:
            self._pages.resumed(*entry.at_work())

    def allocate(self, entry: ServedRequest, length_tokens: int) -> None:
        """`PrefixCache.allocate`."""
        lease, _ = entry.at_work()
        with entry.spent:
            self.cache.allocate(lease, length_tokens)
        if self._grown is not None:
            self._grown()

    def advance(self, entry: ServedRequest) -> None:
        """`PrefixCache.advance` to what is computed, while it decodes."""
        lease, _ = entry.at_work()
        if self._pages is not None:
            self._pages.ran(lease, entry.computed)
        with entry.spent:
            self.cache.advance(lease, entry.computed)

    def commit(self, entry: ServedRequest) -> bool:
        """`PrefixCache.commit` of what is computed, with the states saved so far; False for less than was cached.

        What a rebuilt window computes again is in the cache already.
        """
        lease, tokens = entry.at_work()
        if self._pages is not None:
            self._pages.ran(lease, entry.computed)
        if entry.computed < lease.cached_tokens:
            return False
        states = {length: page for length, page in lease.save_pages.items() if length <= entry.computed}
        is_known = entry.computed <= entry.target  # what the lease was acquired for
        begin = 0 if is_known else lease.committed
        with entry.spent:
            whole = tokens.tobytes() if self._packs and not is_known else tokens
            computed = entry.computed if is_known else whole[begin : entry.computed]
            self.cache.commit(lease, computed, states=states, begin=begin)
        return True

    def release(self, entry: ServedRequest, lease: Lease) -> None:
        """`PrefixCache.release`."""
        if self._pages is not None:
            self._pages.left(lease)
        with entry.spent:
            self.cache.release(lease)


class ServedRequest:
    """A request in the queue or at work; it keeps its figures through preemptions.

    Attributes:
        target: prefilled up to here and then decoded; after a preemption, up to where the answer had come.
        arrived, queued: the steps at which it arrived, and joined the queue.
        started, computing: those at which it last got a place, and all that it resumes from was on device.
        has_computed, had_token: whether it has ever computed some of its prompt, and whether its first token has come.
        computed, granted: tokens computed, and tokens that there are pages for.
        decoding_from: the step at which `computed` was `target`; None before.
        event_number: its one valid event.
        fetched_tokens: by how many tokens its prefetch made the prefix on host longer.
        failed_loads: how often what it was loading back did not come.
        loading_from: the step since which it waits for what its lease loads back; None when it does not.
        missing_tokens: what it lacked when it was last offered to the cache; not worth another try with less room.
        spent: time inside the library for it.
    """

    def __init__(self, request: Request, arrived: int = 0) -> None:
        self.request = request
        self.arrived = self.queued = self.started = self.computing = arrived
        self.has_computed = self.had_token = False
        self.target = request.prompt_tokens
        self.admitted = False
        self.missing_tokens = 0
        self.failed_loads = 0
        self.fetched_tokens = 0
        self.spent = Stopwatch()
        self.stop()

    def start(self, lease: Lease, tokens: Int64s) -> None:
        """It was admitted: `tokens` are its prompt and answer, what the lease does not resume is to be computed."""
        self.admitted = True
        self.lease: Lease | None = lease
        self.tokens: Int64s | None = tokens
        self.computed = self.granted = lease.compute_from

    def stop(self) -> None:
        """It lost its place; nothing of it is computed any more, as far as it knows."""
        self.lease = None
        self.tokens = None
        self.computed = self.granted = 0
        self.decoding_from: int | None = None
        self.loading_from: int | None = None
        self.event_number = 0

    def stalled(self, steps: int) -> None:
        """It had no pages for so many steps; while it decodes, they give no tokens."""
        if self.decoding_from is not None:
            self.decoding_from += steps

    def decoded_to(self, step: int) -> None:
        """It has decoded one token a step until `step`."""
        assert self.decoding_from is not None
        self.computed = max(self.computed, self.target + step - self.decoding_from)

    def prompt(self) -> Int64s:
        """Token ids of what is prefilled, shape [target]."""
        return self.request.tokens()[: self.target]

    def at_work(self) -> tuple[Lease, Int64s]:
        """Its lease, and its tokens, prompt and answer; it has a place."""
        assert self.lease is not None
        assert self.tokens is not None
        return self.lease, self.tokens

    @property
    def total(self) -> int:
        """Tokens of prompt and answer."""
        return self.request.prompt_tokens + self.request.output_tokens

    def __lt__(self, other: ServedRequest) -> bool:
        return self.request.index < other.request.index


class Observer(Protocol):
    """Who is told what happens. Times are in seconds of the virtual clock."""

    def offered(self, request: Request) -> None:
        """A request that was never admitted is about to be offered to the cache; again, if it found no pages before."""

    def fetched(self, request: Request, waited_s: float) -> None:
        """A request that waited for a store since its arrival joins the queue."""

    def admitted(self, request: Request, lease: Lease, now_s: float, fetched_tokens: int) -> None:
        """A request got its lease for the first time; its prefetch had made the prefix on host so much longer."""

    def loaded(self, request: Request, waited_s: float) -> None:
        """What a request resumes from has arrived from host, so long after its admission."""

    def first_token(self, entry: ServedRequest) -> None:
        """A request's prompt has been computed for the first time."""

    def preempted(self, request: Request) -> None:
        """A running request was put back."""

    def ended(self, request: Request, now_s: float, spent_ns: int, *, rejected: bool) -> None:
        """A request finished or was rejected, after so many nanoseconds in the library."""
