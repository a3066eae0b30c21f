"""A prefix cache's link to prefixes kept elsewhere, beside its own tiers.

When a prompt arrives it is looked up; what was found beyond what this cache has is retrieved into pages of a lease that
belongs to the link alone, and committed from there to the tree. So the request itself does nothing new: it waits until it is
ready, then acquires, and finds a longer prefix, or computes what did not come. A retrieve that is late keeps its lease, and
with it its pages, until it has ended; nobody else can be handed a page that is still being written.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.prefix_linker.linked_pool import format_digest
from unified_tree.controllers.prefix_linker.prefix_linker import PrefixLinker, Progress, Span
from unified_tree.controllers.prefix_linker.prefix_salt import PrefixSalt
from unified_tree.controllers.prefix_linker.storable import storable
from unified_tree.controllers.storage.setting_checks import MAX_BYTES, Bounds, check_number
from unified_tree.errors import ConfigurationError, OutOfPagesError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unified_tree.controllers.cache.generations import Generation
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary, Receipt


@dataclass(slots=True, kw_only=True)
class LinkStats:
    """Since the link was made.

    Attributes:
        lookups, found_tokens: prompts looked up, and what was found of them, that which the cache had itself included.
        retrieved_tokens, stored_tokens: of transfers that succeeded.
        retrieves_failed, retrieves_late, stores_failed: transfers.
        no_room: retrieves not begun for want of device pages.
        stores_dropped: not begun, for there were too many under way, or the peer was away.
    """

    lookups: int = 0
    found_tokens: int = 0
    retrieved_tokens: int = 0
    stored_tokens: int = 0
    retrieves_failed: int = 0
    retrieves_late: int = 0
    stores_failed: int = 0
    no_room: int = 0
    stores_dropped: int = 0


class _Stage(Enum):
    LOOKING = "looking"
    FETCHING = "fetching"
    READY = "ready"


class LinkedPrefixes:
    """A cache and a linker. One thread calls, the cache's; no call waits.

    A request: `arrive`, then `ready` after each `poll` until it is, then `PrefixCache.acquire` as ever; after a commit `store`;
    at its end `leave`. The cache's own `prefetch` may run at the same time.

    Args:
        cache: without ranks, and with no windows and states but those that are linked.
        linker: over the cache's device pools; closed with the link.
        pools: the same that the linker was given.
        weights_version: of the model now; who uses another finds nothing of it.
        wait_s: how long a request waits for all of it, from its arrival.
        min_tokens: a retrieve must bring at least so many.
        store_limit: stores under way at once; their pages cannot be evicted meanwhile.
        invalidation_limit: namespaces invalidated on their own that are told apart. With one more, no namespace finds what was
            stored before, as if all had been invalidated.
        clock: seconds; a test's own.

    Raises ConfigurationError for a cache that cannot be linked, and for a version or numbers that cannot be.
    """

    def __init__(
        self,
        cache: PrefixCache,
        linker: PrefixLinker,
        pools: Sequence[LinkedPool],
        *,
        weights_version: str,
        wait_s: float = 1.0,
        min_tokens: int = 1,
        store_limit: int = 64,
        invalidation_limit: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(weights_version) is not str:
            raise ConfigurationError(f"weights_version must be a string, not {weights_version!r}")
        check_number("wait_s", wait_s, float, Bounds(0, math.inf))
        check_number("min_tokens", min_tokens, int, Bounds(1, MAX_BYTES))
        check_number("store_limit", store_limit, int, Bounds(1, MAX_BYTES))
        _check_cache(cache, linker, pools)
        self.cache = cache
        self._pools = pools
        self.linker = linker
        self.counts = LinkStats()
        linked = {pool.name for pool in pools}
        self._lacking = [c.name for c in cache.tree.components if c.name not in linked]
        self._invalidations = cache.weights.count_invalidations(invalidation_limit)
        self._salt = PrefixSalt(weights_version, format_digest(pools), self._invalidations.of)
        self._wait_s = wait_s
        self._min_tokens = min_tokens
        self._store_limit = store_limit
        self._clock = clock
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())
        self._requests: dict[Hashable, _Request] = {}
        self._late: dict[str, Lease] = {}
        self._stores: dict[str, tuple[Receipt, int]] = {}

    def arrive(self, request: Hashable, key: Key) -> None:
        """A prompt has arrived: begin to look for it, at most its length less one token. Another of that name is left first."""
        self.leave(request)
        name, salt = next(self._names), self._salt.of(key.namespace)
        arrived = self._requests[request] = _Request(key, name, salt, self.cache.generation(key.namespace), self._clock())
        tokens = _tokens(key)[: key.length - 1]
        if key.bigram or tokens.size < self.linker.chunk_tokens:
            arrived.stage = _Stage.READY  # a bigram page holds more than its tokens say
            return
        self.counts.lookups += 1
        self.linker.lookup(name, tokens, salt)

    def checkpoints(self, prompt_tokens: int) -> tuple[int, ...]:
        """Where a prompt's windows and states must be saved to be stored: its last whole chunk. For `PrefixCache.acquire`,
        beside the scheduler's own checkpoints. Empty where every whole chunk can be stored.
        """
        if not self.cache.layout.saves:
            return ()
        grid = math.lcm(self.linker.chunk_tokens, self.cache.layout.save_grid_tokens)
        return (prompt_tokens // grid * grid,) if prompt_tokens >= grid else ()

    def ready(self, request: Hashable) -> bool:
        """Whether a request should go on to `acquire`; one that never arrived should. Ask again after the next `poll`."""
        arrived = self._requests.get(request)
        return arrived is None or arrived.stage is _Stage.READY

    def retrieved_tokens(self, request: Hashable) -> int:
        """By how many tokens a retrieve has made the prefix longer for this request; 0 for one that is not known."""
        arrived = self._requests.get(request)
        return 0 if arrived is None else arrived.retrieved

    def poll(self) -> None:
        """Once a scheduler step: take in what has ended and begin what was found. Cost: O(requests that wait and transfers)."""
        for arrived in self._requests.values():
            if arrived.stage is _Stage.LOOKING:
                self._look(arrived)
            if arrived.stage is _Stage.FETCHING:
                self._take_in(arrived)
        for name in [name for name in self._late if self.linker.progress(name) is not Progress.RUNNING]:
            self.cache.release(self._late.pop(name))
            self.linker.release(name)
        for name in [name for name in self._stores if self.linker.progress(name) is not Progress.RUNNING]:
            self._end_store(name)

    def store(self, request: Hashable, lease: Lease) -> None:
        """Begin to store what a lease has committed and the peer lacks, in whole chunks; for a request that has arrived.

        With windows and states that is up to every boundary at a whole chunk, see `checkpoints`. Cost: with these a match a
        boundary, else a look at the lease.
        """
        arrived, namespace = self._requests[request], lease.key.namespace
        is_current = lease.generation is arrived.generation is self.cache.generation(namespace)
        if lease.key.bigram or lease.loading or not is_current:
            return  # what was invalidated has no boundary any more
        for boundary, end in storable(self.cache, self._pools, lease, arrived.stored, self.linker.chunk_tokens):
            if len(self._stores) >= self._store_limit or not self.linker.is_healthy:
                self.counts.stores_dropped += 1
                return
            self._store(arrived, lease, boundary, end)

    def _store(self, arrived: _Request, lease: Lease, boundary: Boundary, end: int) -> None:
        begin, tree = arrived.stored, self.cache.tree
        pages = {}
        for pool in self._pools:
            first, last = pool.page_range(begin, end)
            ids = tree.pages(boundary, pool.owner)
            pages[pool.name] = ids[first:last] if pool.coverage.is_path else ids[ids.size - (last - first) :]
        name, receipt = next(self._names), tree.lock(boundary, components=sorted({pool.owner for pool in self._pools}))
        self.linker.store(name, Span(tokens=_tokens(lease.key)[:end], salt=arrived.salt, begin=begin, end=end, pages=pages))
        self._stores[name] = (receipt, end - begin)
        arrived.stored = end

    def leave(self, request: Hashable) -> None:
        """A request is over or cancelled; one that is not known is left alone. Stores go on."""
        arrived = self._requests.pop(request, None)
        if arrived is not None:
            self._stop(arrived)

    def close(self) -> None:
        """Close the linker, as it does, and let go of all leases. The cache goes on.

        Raises LinkError where a transfer was not known to have ended; its pages stay out of use for good.
        """
        for request in list(self._requests):
            self.leave(request)
        self.poll()
        self.linker.close()
        for lease in self._late.values():
            self.cache.release(lease)
        for receipt, _ in self._stores.values():
            receipt.release()
        self._late.clear()
        self._stores.clear()

    def _look(self, arrived: _Request) -> None:
        found = self.linker.found(arrived.name)
        if found is None:
            if self._clock() - arrived.since > self._wait_s:
                self._stop(arrived)
            return
        self.counts.found_tokens += found
        arrived.stored = found
        if not self._begin(arrived, found):
            self._stop(arrived)

    def _begin(self, arrived: _Request, found: int) -> bool:
        """Whether a retrieve was begun; not where it is not worth it, or there is no room."""
        cache, key = self.cache, arrived.key
        if arrived.generation is not cache.generation(key.namespace):
            return False
        there = cache.tree.match_prefix(key, limit=key.length - 1, touch=False)
        rebuilt = there.rebuild.length - there.rebuild_tokens if cache.rebuild else 0
        if found - max(there.device.length, there.reachable.length, rebuilt) < self._min_tokens:
            return False
        try:
            lease = cache.acquire_to_fill(key, found)
        except OutOfPagesError:
            self.counts.no_room += 1
            return False
        begin, chunk = lease.cached_tokens, self.linker.chunk_tokens
        first = begin // chunk * chunk
        pages = {pool.name: self._pages_of(lease, pool, first, found) for pool in self._pools}
        span = Span(tokens=_tokens(key)[:found], salt=arrived.salt, begin=begin, end=found, pages=pages)
        self.linker.retrieve(arrived.name, span)
        arrived.lease, arrived.end, arrived.stage = lease, found, _Stage.FETCHING
        return True

    def _take_in(self, arrived: _Request) -> None:
        lease = arrived.lease
        assert lease is not None
        progress = self.linker.progress(arrived.name)
        if progress is Progress.RUNNING:
            if self._clock() - arrived.since > self._wait_s:
                self.counts.retrieves_late += 1
                self._stop(arrived)
            return
        if progress is Progress.DONE:
            arrived.retrieved = arrived.end - lease.cached_tokens
            self.counts.retrieved_tokens += arrived.retrieved
            states = {} if lease.state_page is None else {arrived.end: lease.state_page}
            self.cache.commit(lease, arrived.end, states, without=self._lacking, resumable=True)
        else:
            self.counts.retrieves_failed += 1
        arrived.lease = None
        self.cache.release(lease)
        self._stop(arrived)

    def _stop(self, arrived: _Request) -> None:
        """Whatever it waits for, it waits no longer."""
        if arrived.lease is not None:
            self._late[arrived.name] = arrived.lease
            arrived.lease = None
        elif arrived.stage is not _Stage.READY:
            self.linker.release(arrived.name)
        arrived.stage = _Stage.READY

    def _end_store(self, name: str) -> None:
        receipt, tokens = self._stores.pop(name)
        receipt.release()
        if self.linker.progress(name) is Progress.DONE:
            self.counts.stored_tokens += tokens
        else:
            self.counts.stores_failed += 1
        self.linker.release(name)

    def _pages_of(self, lease: Lease, pool: LinkedPool, first_token: int, end: int) -> NDArray[np.int64]:
        if pool.coverage.is_exact:
            return np.array([lease.state_page], np.int64)
        return _own(lease, pool.owner, *pool.page_range(first_token, end))


@dataclass(slots=True)
class _Request:
    """Attributes:
    stored: tokens that the peer has, or was asked to keep.
    end: up to which the retrieve under way goes.
    retrieved: tokens that came by it.
    """

    key: Key
    name: str
    salt: str
    generation: Generation
    since: float
    stage: _Stage = _Stage.LOOKING
    stored: int = 0
    end: int = 0
    retrieved: int = 0
    lease: Lease | None = None


def _own(lease: Lease, component: str, first: int, last: int) -> NDArray[np.int64]:
    """Page ids of a table; where it has a hole, which is before what is retrieved, a page of the lease's own."""
    ids = lease.tables[component].slice(first, last)
    return np.where(ids < 0, ids[-1], ids)


def _tokens(key: Key) -> NDArray[np.int64]:
    return np.frombuffer(key.data, np.int64, key.length * key.width_bytes // 8)


def _check_cache(cache: PrefixCache, linker: PrefixLinker, pools: Sequence[LinkedPool]) -> None:
    saved = {*(name for name, _ in cache.layout.windows), *([cache.layout.point] if cache.layout.point else [])}
    left_out = sorted(saved - {pool.name for pool in pools})
    if left_out:
        raise ConfigurationError(
            "a cache with windows or states that are not linked cannot be resumed from what a linker brings; not linked are "
            f"{', '.join(left_out)}"
        )
    if not cache.ranks.is_alone:
        raise ConfigurationError("a prefix linker is not agreed upon among ranks; link a cache of one rank only")
    if linker.chunk_tokens % cache.page_size:
        raise ConfigurationError(f"chunks of {linker.chunk_tokens} tokens are no multiple of pages of {cache.page_size}")
