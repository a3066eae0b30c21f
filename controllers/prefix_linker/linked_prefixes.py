"""A prefix cache's link to a prefix cache elsewhere, beside its own tiers.

An arriving prompt is looked up at the peer. What was found beyond this cache's own prefix is retrieved into the pages of a
separate lease of the link, and committed from there to the tree. The request only waits until it is ready, then acquires as
usual: it finds a longer prefix, or computes what did not arrive. A late retrieve keeps its lease and pages until it has ended,
so a page that is still being written is never reused.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.prefix_linker.linked_pool import format_digest
from unified_tree.controllers.prefix_linker.prefix_linker import LinkCounters, PrefixLinker, Progress, Span, tokens_of
from unified_tree.controllers.storage.engine_settings import MAX_BYTES, Bounds, check_number
from unified_tree.inputs.printable import repr_of
from unified_tree.lookup.matching import spare_from
from unified_tree.terms.errors import ConfigurationError, OutOfPagesError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.controllers.weights.generations import Generation
    from unified_tree.declare.keys import Key
    from unified_tree.locks.locks import Receipt
    from unified_tree.terms.results import Boundary


class Stage(Enum):
    """How far a request is."""

    LOOKING = "looking"
    FETCHING = "fetching"
    READY = "ready"


@dataclass(slots=True)
class LinkedRequest:
    """One request.

    Attributes:
        key: its prompt.
        name: what the linker knows it as.
        salt: of its namespace when it arrived.
        generation: of its namespace when it arrived.
        since: when that was, in seconds.
        stage: how far it is.
        stored_tokens: what the peer has, or was asked to keep.
        retrieved_tokens: what came by a retrieve.
        retrieve: the one under way.
    """

    key: Key
    name: str
    salt: str
    generation: Generation
    since: float
    stage: Stage = Stage.LOOKING
    stored_tokens: int = 0
    retrieved_tokens: int = 0
    retrieve: LinkedRetrieve | None = None


class LinkedPrefixes:
    """Links a cache to a linker. The cache's thread makes all calls; no call waits.

    A request calls `lookup`, then `is_ready` after each `poll` until it is, then `PrefixCache.acquire` as usual; `store` after
    a commit; `release` at its end. The cache's own `prefetch` may run at the same time. A boundary is a length one can resume
    from.

    Args:
        cache: without ranks, and with no windows and states but those that are linked.
        linker: over the cache's device pools; closed with the link.
        pools: the same that the linker was given.
        weights_version: the current version of the model; prefixes of another version are not shared.
        wait_s: maximum time that a request waits, from its `lookup`.
        min_tokens: minimum gain of a retrieve.
        store_limit: maximum number of running stores; their pages are locked meanwhile.
        invalidation_limit: how many namespaces invalidated on their own are counted. With one more, all count as invalidated,
            and no namespace finds what was stored before.
        clock: seconds; a test's own.

    Raises ConfigurationError for a cache that cannot be linked, and for invalid arguments.
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
            raise ConfigurationError(f"weights_version must be a string, not {repr_of(weights_version)}")
        check_number("wait_s", wait_s, float, Bounds(0, math.inf))
        check_number("min_tokens", min_tokens, int, Bounds(1, MAX_BYTES))
        check_number("store_limit", store_limit, int, Bounds(1, MAX_BYTES))
        _check_cache(cache, linker, pools)
        self.cache = cache
        self.linker = linker
        self.counters = LinkCounters()
        self._pools = pools
        linked = {pool.name for pool in pools}
        self._lacking = [c.name for c in cache.tree.components if c.name not in linked]
        self._invalidations = cache.weights.generations.count(invalidation_limit)
        self._salt = PrefixSalt(weights_version, format_digest(pools), self._invalidations.of)
        self._wait_s = wait_s
        self._min_tokens = min_tokens
        self._clock = clock
        self._names = (f"{secrets.token_hex(4)}-{number}" for number in itertools.count())
        self._requests: dict[Hashable, LinkedRequest] = {}
        self._late: dict[str, LinkedRetrieve] = {}
        self._stores = LinkedStores(cache, linker, pools, store_limit, self._names, self.counters)

    def lookup(self, request: Hashable, key: Key) -> None:
        """Start to look an arriving prompt up, at most its length less one token. Releases an earlier one of that name."""
        self.release(request)
        name, salt = next(self._names), self._salt.of(key.namespace)
        arrived = LinkedRequest(key.owned(), name, salt, self.cache.generation(key.namespace), self._clock())
        self._requests[request] = arrived
        if key.bigram or key.length - 1 < self.linker.chunk_tokens:
            arrived.stage = Stage.READY  # a bigram page holds more than its tokens say
            return
        self.counters.lookups += 1
        self.linker.lookup(name, tokens_of(key)[: key.length - 1], salt)

    def checkpoints(self, prompt_tokens: int) -> tuple[int, ...]:
        """Where a prompt's windows and states must be saved to be stored: its last whole chunk. For `PrefixCache.acquire`,
        beside the scheduler's own checkpoints. Empty where every whole chunk can be stored.
        """
        if not self.cache.layout.needs_saves:
            return ()
        grid = math.lcm(self.linker.chunk_tokens, self.cache.layout.state_grid_tokens)
        return (prompt_tokens // grid * grid,) if prompt_tokens >= grid else ()

    def is_ready(self, request: Hashable) -> bool:
        """Whether a request should call `acquire` now; True for an unknown one. If not, ask again after the next `poll`."""
        arrived = self._requests.get(request)
        return arrived is None or arrived.stage is Stage.READY

    def retrieved_tokens(self, request: Hashable) -> int:
        """How many tokens a retrieve has added to the prefix of this request; 0 for an unknown one."""
        arrived = self._requests.get(request)
        return 0 if arrived is None else arrived.retrieved_tokens

    def poll(self) -> None:
        """Once a scheduler step: apply what has ended and begin what was found. Cost: O(requests that wait and transfers)."""
        for arrived in self._requests.values():
            if arrived.stage is Stage.LOOKING:
                self._look(arrived)
            if arrived.stage is Stage.FETCHING:
                self._fetch(arrived)
        for name in [name for name in self._late if self.linker.progress(name) is not Progress.RUNNING]:
            self._late.pop(name).release()
            self.linker.release(name)
        self._stores.poll()

    def store(self, request: Hashable, lease: Lease) -> None:
        """Start to store what a lease has committed and the peer lacks, in whole chunks. The request must be known from
        `lookup`.

        With windows and states that is up to every boundary at a whole chunk, see `checkpoints`. Cost: with these a match a
        boundary, else a look at the lease.
        """
        arrived, namespace = self._requests[request], lease.key.namespace
        is_current = lease.generation is arrived.generation is self.cache.generation(namespace)
        if is_current and not lease.key.bigram and not lease.is_loading:  # what was invalidated has no boundary any more
            arrived.stored_tokens = self._stores.begin(lease, arrived.stored_tokens, arrived.salt)

    def release(self, request: Hashable) -> None:
        """End or cancel a request; no effect for an unknown one. Its stores continue."""
        arrived = self._requests.pop(request, None)
        if arrived is not None:
            self._stop(arrived)

    def close(self) -> None:
        """Close the linker, as it does, and release all pages. The cache goes on.

        Raises LinkError if a transfer may still be running; its pages are never used again.
        """
        for request in list(self._requests):
            self.release(request)
        self.poll()
        self.linker.close()
        for retrieve in self._late.values():
            retrieve.release()
        self._late.clear()
        self._stores.close()

    def _look(self, arrived: LinkedRequest) -> None:
        found = self.linker.found(arrived.name)
        if found is None:
            if self._clock() - arrived.since > self._wait_s:
                self._stop(arrived)
            return
        self.counters.found_tokens += found
        arrived.stored_tokens = found
        if self._is_worth_it(arrived, found):
            self._begin(arrived, found)
        else:
            self._stop(arrived)

    def _is_worth_it(self, arrived: LinkedRequest, found: int) -> bool:
        """Whether enough was found beyond what the cache has, or can rebuild."""
        cache, key = self.cache, arrived.key
        if arrived.generation is not cache.generation(key.namespace):
            return False
        there = cache.tree.match_prefix(key, limit=key.length - 1, touch=False)
        rebuilt = there.rebuild.length - there.rebuild_tokens if cache.rebuild else 0
        return found - max(there.device.length, there.reachable.length, rebuilt) >= self._min_tokens

    def _begin(self, arrived: LinkedRequest, found: int) -> None:
        try:
            retrieve = LinkedRetrieve(self.cache, arrived.key, found)
        except OutOfPagesError:
            self.counters.no_room += 1
            self._stop(arrived)
            return
        self.linker.retrieve(arrived.name, retrieve.span(self._pools, arrived.salt, self.linker.chunk_tokens))
        arrived.retrieve, arrived.stage = retrieve, Stage.FETCHING

    def _fetch(self, arrived: LinkedRequest) -> None:
        retrieve = arrived.retrieve
        assert retrieve is not None
        progress = self.linker.progress(arrived.name)
        if progress is Progress.RUNNING:
            if self._clock() - arrived.since > self._wait_s:
                self.counters.retrieves_late += 1
                self._stop(arrived)
            return
        if progress is Progress.DONE:
            arrived.retrieved_tokens = retrieve.publish(self._lacking)
            self.counters.retrieved_tokens += arrived.retrieved_tokens
        else:
            self.counters.retrieves_failed += 1
        arrived.retrieve = None
        retrieve.release()
        self._stop(arrived)

    def _stop(self, arrived: LinkedRequest) -> None:
        """Whatever it waits for, it waits no longer."""
        if arrived.retrieve is not None:
            self._late[arrived.name] = arrived.retrieve
            arrived.retrieve = None
        elif arrived.stage is not Stage.READY:
            self.linker.release(arrived.name)
        arrived.stage = Stage.READY


def _check_cache(cache: PrefixCache, linker: PrefixLinker, pools: Sequence[LinkedPool]) -> None:
    saved = {*(name for name, _ in cache.layout.windows), *([cache.layout.point] if cache.layout.point else [])}
    left_out = sorted(saved - {pool.name for pool in pools})
    if left_out:
        raise ConfigurationError(
            "a cache with windows or states that are not linked cannot be resumed from what a linker brings; not linked are "
            f"{', '.join(left_out)}"
        )
    if not cache.ranks.is_single_rank:
        raise ConfigurationError("a prefix linker is not agreed upon among ranks; link a cache of one rank only")
    if linker.chunk_tokens % cache.page_size:
        raise ConfigurationError(f"chunks of {linker.chunk_tokens} tokens are no multiple of pages of {cache.page_size}")


class PrefixSalt:
    """Salts of a cache's namespaces.

    After `PrefixCache.invalidate` a namespace's salt is unique: only this process finds what is computed from then on, until a
    link is created with the new weights version.

    Args:
        weights_version: of the model at the time.
        formats: identifies the linked pages' formats (`format_digest`).
        generation: `InvalidationCounters.of`.
    """

    def __init__(self, weights_version: str, formats: str, generation: Callable[[str], tuple[int, int]]) -> None:
        self._weights_version = weights_version
        self._formats = formats
        self._generation = generation
        self._overall = generation("")[0]
        self._secret = secrets.token_hex(16)

    def of(self, namespace: str) -> str:
        """32 hexadecimal digits."""
        generation = self._generation(namespace)
        parts: tuple[object, ...] = (namespace, self._weights_version, self._formats)
        if generation != (self._overall, 0):
            parts = (*parts, self._secret, generation)
        return sha256(repr(parts).encode()).hexdigest()[:32]


class LinkedRetrieve:
    """A lease that holds pages for the first `end` tokens of a key, and of a window only what is needed there. What the linker
    fills is published to the tree.

    Args:
        cache: gives the pages, evicting as needed.
        key: the prompt.
        end: what was found, more than the cache has.

    Raises OutOfPagesError, with nothing held, where the device has no room.
    """

    def __init__(self, cache: PrefixCache, key: Key, end: int) -> None:
        self._cache = cache
        self._end = end
        self._lease = cache.acquire_to_fill(key, end)
        if self._lease.given_up:
            lacking = ", ".join(self._lease.given_up)
            cache.release(self._lease)
            raise OutOfPagesError(f"a linker fills the pages of all components, and there are none of {lacking}")
        self.begin = self._lease.cached_tokens

    def span(self, pools: Sequence[LinkedPool], salt: str, chunk_tokens: int) -> Span:
        """What the linker is to fill: whole chunks, from the one that the first missing token lies in."""
        first = self.begin // chunk_tokens * chunk_tokens
        pages = {pool.name: self._pages_of(pool, first) for pool in pools}
        return Span(tokens=tokens_of(self._lease.key)[: self._end], salt=salt, begin=self.begin, end=self._end, pages=pages)

    def _pages_of(self, pool: LinkedPool, first_token: int) -> NDArray[np.int64]:
        if pool.coverage.is_exact:
            return np.array([self._lease.state_page], np.int64)
        first, last = pool.page_range(first_token, self._end)
        ids = self._lease.pages(pool.owner, first)[: last - first]
        return np.where(ids < 0, ids[-1], ids)  # holes lie before `begin`: a page of the lease's own, which is not written

    def publish(self, lacking: Sequence[str]) -> int:
        """The pages are filled, but for some components: give them to the tree. Returns by how many tokens the prefix grew."""
        lease = self._lease
        states = {} if lease.state_page is None else {self._end: lease.state_page}
        self._cache.commit(lease, self._end, states, without=lacking, resumable=True)
        return self._end - self.begin

    def release(self) -> None:
        """Free what is held; nobody writes to it any more."""
        self._cache.release(self._lease)


class LinkedStores:
    """Stores of one link: the boundaries of leases that fit. Each locks its pages until it has ended; its length is the number
    under way.

    Args:
        cache: has the pages.
        linker: stores them.
        pools: the linker's.
        limit: stores under way at once.
        names: new ones.
        counters: of the link.
    """

    def __init__(
        self,
        cache: PrefixCache,
        linker: PrefixLinker,
        pools: Sequence[LinkedPool],
        limit: int,
        names: Iterator[str],
        counters: LinkCounters,
    ) -> None:
        self._cache = cache
        self._linker = linker
        self._pools = pools
        self._owners = sorted({pool.owner for pool in pools})
        self._limit = limit
        self._names = names
        self._counters = counters
        self._open: dict[str, tuple[Receipt, int]] = {}

    def __len__(self) -> int:
        """Stores under way."""
        return len(self._open)

    def begin(self, lease: Lease, stored: int, salt: str) -> int:
        """Store what a lease has committed beyond the tokens stored. Returns up to where that is asked for now.

        Cost: with windows and states a match a boundary, else a look at the lease.
        """
        for boundary, end in self.storable(lease, stored):
            if len(self) >= self._limit or not self._linker.is_healthy:
                self._counters.stores_dropped += 1
                break
            self._store(lease, boundary, salt, stored, end)
            stored = end
        return stored

    def storable(self, lease: Lease, stored: int) -> list[tuple[Boundary, int]]:
        """Boundaries on what a lease has committed at which every linked component is on the device, and the whole chunks of
        each, ascending, all beyond the tokens stored. Without windows and states the last one stands for all. None at which
        windows are spare: these are in the way of what was asked for.
        """
        chunk, boundary = self._linker.chunk_tokens, lease.boundary
        if not self._cache.layout.needs_saves:
            end = self._reach(boundary, boundary.length) // chunk * chunk
            return [(boundary, end)] if end > stored else []
        found = []
        state = self._cache.tree.state
        limit = boundary.length // chunk * chunk
        while limit > stored:
            boundary = self._cache.tree.match_prefix(lease.tree_key, limit=limit, touch=False).device
            node = state.nodes.get(boundary.node)
            spare = None if node is None else spare_from(state, node, boundary.length)
            if spare is not None:
                limit = min(boundary.length - 1, spare) // chunk * chunk
                continue
            is_whole = boundary.length > stored and boundary.length % chunk == 0
            if is_whole and self._reach(boundary, limit) >= boundary.length:
                found.append((boundary, boundary.length))
            limit = (boundary.length - 1) // chunk * chunk
        return found[::-1]

    def _reach(self, boundary: Boundary, length: int) -> int:
        """Up to which token every linked component's own state is there; 0 where a window or a state is not."""
        for pool in self._pools:
            count = self._cache.tree.pages(boundary, pool.name).size
            if pool.coverage.is_path:
                length = min(length, count * self._cache.page_size)
                continue
            first, last = pool.page_range(0, boundary.length)
            if count < last - first:
                return 0
        return length

    def _store(self, lease: Lease, boundary: Boundary, salt: str, begin: int, end: int) -> None:
        tree, pages = self._cache.tree, {}
        for pool in self._pools:
            first, last = pool.page_range(begin, end)
            ids = tree.pages(boundary, pool.owner)
            pages[pool.name] = ids[first:last] if pool.coverage.is_path else ids[ids.size - (last - first) :]
        name, receipt = next(self._names), tree.lock(boundary, components=self._owners)
        self._linker.store(name, Span(tokens=tokens_of(lease.key)[:end], salt=salt, begin=begin, end=end, pages=pages))
        self._open[name] = (receipt, end - begin)

    def poll(self) -> None:
        """Release what has been stored, or has failed. Cost: O(stores under way)."""
        for name in list(self._open):
            progress = self._linker.progress(name)
            if progress is Progress.RUNNING:
                continue
            receipt, tokens = self._open.pop(name)
            receipt.release()
            if progress is Progress.DONE:
                self._counters.stored_tokens += tokens
            else:
                self._counters.stores_failed += 1
            self._linker.release(name)

    def close(self) -> None:
        """The linker was closed: release everything."""
        for receipt, _ in self._open.values():
            receipt.release()
        self._open.clear()
