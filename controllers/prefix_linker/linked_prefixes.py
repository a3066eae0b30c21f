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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING

from unified_tree.controllers.prefix_linker.linked_pool import format_digest
from unified_tree.controllers.prefix_linker.linked_retrieve import LinkedRetrieve
from unified_tree.controllers.prefix_linker.linked_stores import LinkedStores
from unified_tree.controllers.prefix_linker.prefix_linker import LinkCounters, PrefixLinker, Progress, tokens_of
from unified_tree.controllers.storage.engine_settings import MAX_BYTES, Bounds, check_number
from unified_tree.terms.errors import ConfigurationError, OutOfPagesError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.controllers.weights.generations import Generation
    from unified_tree.declare.keys import Key


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
            raise ConfigurationError(f"weights_version must be a string, not {weights_version!r}")
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
