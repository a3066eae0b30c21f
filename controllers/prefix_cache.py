"""The prefix cache a scheduler holds: leases over the tree and the page pools.

A request's life: `acquire` matches and locks; `allocate` gives pages ahead of computing; `commit` publishes what was computed
and swaps duplicates for the tree's pages; `truncate` takes back rejected draft tokens; `release` ends it. Every page is at any
moment the free list's, the tree's or exactly one lease's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.component import Component, Path, Point, Trailing
from unified_tree.controllers.admission import admit, arrive
from unified_tree.controllers.hybrid_cache_controller import HybridCacheController
from unified_tree.controllers.lease import Lease
from unified_tree.controllers.publishing import publish
from unified_tree.controllers.stats import CacheStats, Counters, cache_stats
from unified_tree.controllers.tier_pages import TierPages
from unified_tree.errors import ConfigurationError, LeaseError, TransferError
from unified_tree.keys import Key
from unified_tree.node import Tier
from unified_tree.policies import PolicyFactory
from unified_tree.tree import UnifiedTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.host_tier import HostTier
    from unified_tree.explain import Explanation
    from unified_tree.receipt import InsertResult


class PrefixCache:
    """A prefix cache on device, with a host tier if one is given. The caller's thread is the only one that touches it.

    Args:
        components: the kinds of state; a composition's `components`.
        page_size: tokens a page.
        page_counts: device pages by component with pages of its own; one left out is unbounded.
        policy: eviction policy by name, or a factory; see UnifiedTree.
        replay: resume from a rebuilt window where that computes fewer tokens.
        save_limit: how many places a request saves states and windows at, at most.
        host: a host tier behind the device; its engine is closed with the cache.

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
        policy: str | PolicyFactory = "lru",
        replay: bool = True,
        save_limit: int = 4,
        host: HostTier | None = None,
    ) -> None:
        counts = dict(page_counts or {})
        self.tree = UnifiedTree(components, page_size, policy=policy, page_counts=counts)
        self.page_size = page_size
        owners = [c for c in self.tree.components if c.shares is None]
        self.paths = tuple(c.name for c in owners if isinstance(c.coverage, Path))
        self.windows = tuple((c.name, c.coverage.window_tokens) for c in owners if isinstance(c.coverage, Trailing))
        points = [c.name for c in owners if isinstance(c.coverage, Point)]
        if len(points) > 1:
            raise ConfigurationError(
                f"one Point component may have pages of its own, the others share them; there are {points}"
            )
        self.point = points[0] if points else None
        self.owner_of = {c.name: c.shares or c.name for c in self.tree.components}
        self.saves = self.point is not None or bool(self.windows)
        self.save_grid_tokens = self.tree.state.save_grid_tokens
        self.counters = Counters()
        self.device = TierPages(self.tree, Tier.DEVICE, counts, self.counters)
        self.controller = None if host is None else HybridCacheController(self.tree, self.device, host, self.counters)
        self.replay = replay
        self.save_limit = save_limit
        self._leases: set[Lease] = set()
        self._loading: dict[Lease, None] = {}
        self._generation = 0
        self._generations: dict[str, int] = {}

    def acquire(
        self,
        key: Key,
        checkpoints: Sequence[int] = (),
        *,
        priority: int = 0,
        save_output: bool = True,
        may_load: bool = True,
    ) -> Lease:
        """A lease on the longest usable prefix of `key`, at most its length less one.

        Args:
            key: the prompt.
            checkpoints: lengths where later prompts are likely to branch off: ends of turns, of a shared system prompt.
            priority: for the policy of that name.
            save_output: whether later prompts may go on from this one's output, so that states are worth saving there.
            may_load: whether to load back what lies on host; False where a load has failed, so as not to wait for another.

        Raises OutOfPagesError, with nothing changed, if there is no page for the running state, InvalidKeyError for negative
        token ids. Cost: a match and a lock.
        """
        if not isinstance(key, Key) or key.length == 0:
            raise LeaseError(f"acquire takes a Key of at least one token, not {key!r}")
        key.require_tokens()
        lease = admit(self, key, checkpoints, priority, save_output, may_load=may_load)
        self._leases.add(lease)
        if lease.load is not None:
            self._loading[lease] = None
        counters = self.counters
        counters.requests += 1
        counters.prompt_tokens += key.length
        counters.hit_tokens += lease.compute_from
        counters.replayed_tokens += lease.replayed_tokens
        return lease

    def poll(self) -> None:
        """Once a scheduler step: apply finished transfers and start what is due. Without a host tier it does nothing.

        Leases whose loads have arrived get the tree's pages. Never blocks. Cost: O(what ended and what starts).
        """
        if self.controller is None:
            return
        try:
            self.controller.poll()
        finally:
            self._take_arrivals()

    def _take_arrivals(self) -> None:
        """Leases whose loads have ended hold the tree's pages from now on, or have failed."""
        for lease in [lease for lease in self._loading if lease.load is not None and lease.load.ended]:
            self._arrive(lease)

    def wait_layer(self, lease: Lease, layer_id: int) -> None:
        """The gate before a model layer: return once what the lease loads back for the layers up to this one is there.

        Raises TransferError if it cannot come any more; the lease is then of no use and should be released.
        """
        self._check(lease)
        if lease.load is not None:
            assert self.controller is not None
            self.controller.wait_layer(lease.load, layer_id)
        elif lease.failure is not None:
            raise TransferError(lease.failure)

    def _settle(self, lease: Lease) -> None:
        """Wait for what a lease loads back. Raises TransferError if it did not come."""
        if lease.load is not None:
            assert self.controller is not None
            if not lease.load.ended:
                self.controller.wait(lease.load)
            self._arrive(lease)
        if lease.failure is not None:
            raise TransferError(lease.failure)

    def _arrive(self, lease: Lease) -> None:
        del self._loading[lease]
        assert lease.load is not None
        tokens = lease.load.tokens
        arrive(self, lease)
        if lease.failure is not None:
            self.counters.hit_tokens -= tokens
            self.counters.drop("lease lost its load")
        else:
            self.counters.host_hit_tokens += tokens

    def allocate(self, lease: Lease, length_tokens: int) -> None:
        """Grow the lease to cover the tokens [0, length_tokens), evicting as needed. Shorter than it is: nothing to do.

        Raises OutOfPagesError, with nothing changed, if a pool cannot give that many.
        Cost: O(new pages), and O(log n) a victim.
        """
        self._check(lease)
        length_tokens = index(length_tokens)
        size = -(-length_tokens // self.page_size)
        needs: dict[str, int] = {}
        for name, table in lease.tables.items():
            if size > table.size:
                needs[name] = size - table.size
        if needs:
            self.device.reserve(needs)
            for name, count in needs.items():
                table = lease.tables[name]
                table.put(table.size, self.device.allocate(name, count))
        lease.length = max(lease.length, length_tokens)
        if self.point is not None:
            self._allocate_saves(lease)

    def _allocate_saves(self, lease: Lease) -> None:
        """Pages for the states to be saved up to the lease's length. A pool that is short saves fewer."""
        assert self.point is not None
        for length in lease.save_at:
            due = lease.committed < length <= lease.length and length not in lease.saved
            if due and length not in lease.save_pages and self.device.try_reserve(self.point):
                lease.save_pages[length] = int(self.device.allocate(self.point, 1)[0])
        if not lease.save_output:
            return
        latest = lease.length // self.save_grid_tokens * self.save_grid_tokens
        if latest <= max(lease.prompt_tokens, lease.committed) or latest in lease.save_pages:
            return
        older = [length for length in lease.save_pages if length > lease.prompt_tokens]
        if older:  # one page follows the output: the next state overwrites the one before
            lease.save_pages[latest] = lease.save_pages.pop(older[0])
        elif self.device.try_reserve(self.point):
            lease.save_pages[latest] = int(self.device.allocate(self.point, 1)[0])

    def advance(self, lease: Lease, computed_tokens: int) -> None:
        """The tokens [0, computed_tokens) are computed: give back window pages that neither the next token nor a place
        still to be saved needs. `commit` does this too. Cost: O(pages given back).
        """
        self._check(lease)
        self._settle(lease)
        if computed_tokens > lease.length:
            raise LeaseError(f"{lease} has pages for {lease.length} tokens, so {computed_tokens} cannot be computed")
        lease.computed = max(lease.computed, computed_tokens)
        end = lease.computed // self.page_size * self.page_size
        end = min([end, *(length for length in lease.save_at if length not in lease.saved)])
        for name, window in self.windows:
            freed = lease.tables[name].drop_front(max(0, end - window) // self.page_size)
            self.device.free(name, freed)
        if lease.window_receipt is not None and lease.computed > lease.window_boundary:
            last = lease.window_boundary // self.page_size
            if all(lease.tables[name].held_from >= last for name, _ in self.windows):
                lease.unpin_windows()

    def commit(
        self,
        lease: Lease,
        tokens: NDArray[np.integer[Any]] | Sequence[int] | int,
        states: Mapping[int, int] | None = None,
        *,
        without: Sequence[str] = (),
        resumable: bool | None = None,
    ) -> None:
        """Publish the whole pages of what has been computed; the partial page stays the lease's own.

        Duplicates are freed, the table is rewritten with the tree's pages, and the lock moves to the new end. Windows
        are kept at the places in `save_at`, and at the end.

        Args:
            tokens: the whole sequence computed so far, from the first token of the prompt on; or how many tokens of
                the prompt (and of what was committed since), which saves passing and comparing them again.
            states: pages that hold states, by length; each from `save_pages`, or the running state's page (which the lease
                gives up) at the very end.
            without: components in shared pages that were not computed (a draft, say).
            resumable: keep the windows at the end; None: only once the whole prompt is computed.

        Raises LeaseError or InsertError, with nothing changed, for tokens or pages that are not this lease's.
        Cost: as an insert.
        """
        self._check(lease)
        self._settle(lease)
        publish(self, lease, tokens, states or {}, without, resumable)

    def truncate(self, lease: Lease, length_tokens: int) -> None:
        """Take back the tokens from `length_tokens` on, which were never committed (rejected draft tokens).

        Raises LeaseError, with nothing changed, if some of them were. Cost: O(pages given back).
        """
        self._check(lease)
        self._settle(lease)
        if not lease.committed <= length_tokens <= lease.length:
            raise LeaseError(f"{lease} can be cut to between {lease.committed} and {lease.length} tokens, not {length_tokens}")
        size = -(-length_tokens // self.page_size)
        for name, table in lease.tables.items():
            self.device.free(name, table.drop_back(size))
        for length in [length for length in lease.save_pages if length > length_tokens]:
            assert self.point is not None
            self.device.free(self.point, np.array([lease.save_pages.pop(length)]))
        lease.length = length_tokens
        lease.key = lease.key.prefix(min(length_tokens, lease.key.length))
        lease.computed = min(lease.computed, length_tokens)

    def release(self, lease: Lease) -> None:
        """End a lease: what it committed stays in the tree, all else goes back to its pool.

        Raises LeaseError if it was released before or belongs to another cache.
        """
        self._check(lease)
        for name, table in lease.tables.items():
            self.device.free(name, table.slice(max(table.held_from, table.private_from), table.size).copy())
        own = [*lease.save_pages.values(), *([] if lease.state_page is None else [lease.state_page])]
        if self.point is not None and own:
            self.device.free(self.point, np.array(own, np.int64))
        if lease.load is not None:
            assert self.controller is not None
            del self._loading[lease]
            self.controller.drop(lease.load)
            lease.load = None
        lease.unpin()
        self._leases.discard(lease)
        lease.cache = None

    def invalidate(self, namespace: str | None = None) -> None:
        """A new weights version, for one namespace or for all: what was computed before is never matched again.

        Leases at work go on with the pages they hold, but what they commit stays their own; those that still wait for a load
        fail. The tree's pages come free as they are needed. Cost: O(1), and O(leases that are loading).
        """
        self.tree.invalidate(namespace)
        if namespace is None:
            self._generation += 1
        else:
            self._generations[namespace] = self._generations.get(namespace, 0) + 1
        for lease in self._loading:
            if lease.load is not None and namespace in (None, lease.key.namespace):
                lease.load.error = lease.load.error or f"{lease} was loading what has been invalidated since"

    def generation(self, namespace: str) -> tuple[int, int]:
        """The weights version of a namespace; two that differ share nothing."""
        return self._generation, self._generations.get(namespace, 0)

    def drain(self) -> None:
        """Finish all transfers that have been started or are due, and apply them. Blocks."""
        if self.controller is not None:
            self.controller.drain()
            self._take_arrivals()

    def flush(self) -> None:
        """Copy every boundary to host, as far as it has room, and wait for that."""
        if self.controller is not None:
            self.controller.flush()
            self._take_arrivals()

    def close(self) -> None:
        """Stop moving bytes. Leases can still be released; those that wait for a load fail. Twice is as good as once."""
        if self.controller is not None:
            self.controller.close()
            for lease in list(self._loading):
                self._arrive(lease)

    @property
    def lease_count(self) -> int:
        """Leases not released yet."""
        return len(self._leases)

    def explain(self, key: Key) -> Explanation:
        """Why a prompt would not resume further; see UnifiedTree.explain."""
        return self.tree.explain(key)

    def stats(self) -> CacheStats:
        """Totals so far and the pools as they are. Cost: O(components)."""
        return cache_stats(self)

    def _check(self, lease: Lease) -> None:
        if lease.cache is not self:
            raise LeaseError(f"{lease} was released before" if lease.released else f"{lease} belongs to another cache")

    def take_in(self, result: InsertResult) -> None:
        """Free what an insert handed back."""
        for pages in (result.duplicates, result.replaced):
            self.device.give_back(pages)
            self.counters.duplicate_pages += sum(ids.size for ids in pages.values())
