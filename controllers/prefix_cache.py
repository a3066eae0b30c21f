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
from unified_tree.controllers.device_pages import DevicePages
from unified_tree.controllers.lease import Lease, PageTable, StateCopy
from unified_tree.controllers.publishing import publish
from unified_tree.controllers.stats import CacheStats, Counters, PoolStats
from unified_tree.errors import ConfigurationError, LeaseError, OutOfPagesError
from unified_tree.keys import Key
from unified_tree.policies import PolicyFactory
from unified_tree.tree import UnifiedTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.explain import Explanation
    from unified_tree.receipt import InsertResult, Match


class PrefixCache:
    """A prefix cache on device. The caller's thread is the only one that touches it.

    Args:
        components: the kinds of state; a composition's `components`.
        page_size: tokens a page.
        page_counts: device pages by component with pages of its own; one left out is unbounded.
        policy: eviction policy by name, or a factory; see UnifiedTree.
        replay: resume from a rebuilt window where that computes fewer tokens.
        save_limit: how many places a request saves states and windows at, at most.

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
        self.save_grid_tokens = self.tree.state.save_grid_tokens
        self.counters = Counters()
        self.device = DevicePages(self.tree, counts, self.counters)
        self._replay = replay
        self._save_limit = save_limit
        self._saves = self.point is not None or bool(self.windows)
        self._leases: set[Lease] = set()

    def acquire(self, key: Key, checkpoints: Sequence[int] = (), *, priority: int = 0, save_output: bool = True) -> Lease:
        """A lease on the longest usable prefix of `key`, at most its length less one.

        Args:
            key: the prompt.
            checkpoints: lengths where later prompts are likely to branch off: ends of turns, of a shared system prompt.
            priority: for the policy of that name.
            save_output: whether later prompts may go on from this one's output, so that states are worth saving there.

        Raises OutOfPagesError, with nothing changed, if there is no page for the running state, InvalidKeyError for negative
        token ids. Cost: a match and a lock.
        """
        if not isinstance(key, Key) or key.length == 0:
            raise LeaseError(f"acquire takes a Key of at least one token, not {key!r}")
        key.require_tokens()
        limit = key.length - 1
        if self.point is not None:
            self.device.check({self.point: 1})
        sure = self.point is None or self.device.allocators[self.point].free_pages > 0
        match = self.tree.match_prefix(key, limit=limit, touch=sure)
        boundary = match.replay if self._replay else match.device
        replays = boundary.length > match.device.length
        lease = Lease(self, key, boundary, boundary.length - (match.replay_tokens if replays else 0), priority, save_output)
        self._pin(lease, replays)
        if self.point is not None:
            self._start_state(lease, key, limit, touch=not sure)
        self._lay_out(lease, replays)
        lease.save_at = self._save_points(lease, match, checkpoints) if self._saves else ()
        self._leases.add(lease)
        counters = self.counters
        counters.requests += 1
        counters.prompt_tokens += key.length
        counters.hit_tokens += lease.compute_from
        counters.replayed_tokens += lease.replayed_tokens
        return lease

    def _pin(self, lease: Lease, replays: bool) -> None:
        lease.path_receipt = self.tree.lock(lease.boundary, components=self.paths)
        if lease.boundary.length and not replays and self._saves:
            names = [name for name, _ in self.windows] + ([self.point] if self.point else [])
            lease.window_receipt = self.tree.lock(lease.boundary, components=names)
            lease.window_boundary = lease.boundary.length

    def _start_state(self, lease: Lease, key: Key, limit: int, *, touch: bool) -> None:
        """Give the lease a page for its running state and say what to copy there."""
        assert self.point is not None
        try:
            self.device.reserve({self.point: 1})
        except OutOfPagesError:
            self._unpin(lease)
            raise
        lease.state_page = int(self.device.allocate(self.point, 1)[0])
        if lease.window_receipt is not None:
            source = self.tree.pages(lease.boundary, self.point)
            if source.size:
                lease.state_copies = (StateCopy(component=self.point, source=int(source[0]), target=lease.state_page),)
        if touch:
            self.tree.match_prefix(key, limit=limit)

    def _lay_out(self, lease: Lease, replays: bool) -> None:
        """Page tables with what is cached, and from which token on each component is to be written."""
        page = lease.boundary.length // self.page_size
        for name in self.paths:
            table = lease.tables[name] = PageTable()
            ids = self.tree.pages(lease.boundary, name)
            table.put(0, ids)
            table.put(ids.size, self._holes(page - ids.size))
            table.private_from = page
            lease.write_from[name] = lease.boundary.length
        for name, window in self.windows:
            table = lease.tables[name] = PageTable()
            first = lease.compute_from // self.page_size
            if not replays:
                ids = self.tree.pages(lease.boundary, name)
                table.put(page - ids.size, ids)
                table.held_from = page - ids.size
            else:
                table.held_from = table.size = first
            table.private_from = first
            exact = max(0, lease.boundary.length - window) // self.page_size * self.page_size
            lease.write_from[name] = exact if replays else lease.boundary.length
        if self.point is not None:
            lease.write_from[self.point] = lease.compute_from
        for component in self.tree.components:
            if component.shares is None:
                continue
            lease.write_from[component.name] = lease.write_from[component.shares]
            if not component.required and not isinstance(component.coverage, Point):
                there = self.tree.pages(lease.boundary, component.name).size
                is_path = isinstance(component.coverage, Path)
                missing = (there, page) if is_path else (0, page - there)
                if missing[0] < missing[1]:
                    lease.missing[component.name] = missing

    @staticmethod
    def _holes(count: int) -> NDArray[np.int64]:
        return np.full(max(0, count), -1, np.int64)

    def _save_points(self, lease: Lease, match: Match, checkpoints: Sequence[int]) -> tuple[int, ...]:
        """Where to save: the branch point first, then the checkpoints from the deepest up, else the prompt's end."""
        grid = self.save_grid_tokens
        hints = sorted(map(int, checkpoints), reverse=True) or [lease.prompt_tokens]
        wanted = [*match.save_at, *hints]
        if lease.replayed_tokens:
            wanted.insert(0, lease.cached_tokens)
        resumed = lease.cached_tokens if not lease.replayed_tokens else lease.cached_tokens - 1
        points: list[int] = []
        for length in wanted:
            point = min(length, lease.prompt_tokens) // grid * grid
            if point > resumed and point not in points:
                points.append(point)
        return tuple(sorted(points[: self._save_limit]))

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
                self._release_windows(lease)

    def _release_windows(self, lease: Lease) -> None:
        if lease.window_receipt is not None:
            lease.window_receipt.release()
            lease.window_receipt = None

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
        publish(self, lease, tokens, states or {}, without, resumable)

    def truncate(self, lease: Lease, length_tokens: int) -> None:
        """Take back the tokens from `length_tokens` on, which were never committed (rejected draft tokens).

        Raises LeaseError, with nothing changed, if some of them were. Cost: O(pages given back).
        """
        self._check(lease)
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
        self._unpin(lease)
        self._leases.discard(lease)
        lease.cache = None

    def _unpin(self, lease: Lease) -> None:
        if lease.path_receipt is not None:
            lease.path_receipt.release()
            lease.path_receipt = None
        self._release_windows(lease)

    def explain(self, key: Key) -> Explanation:
        """Why a prompt would not resume further; see UnifiedTree.explain."""
        return self.tree.explain(key)

    def stats(self) -> CacheStats:
        """Totals so far and the pools as they are. Cost: O(components)."""
        c = self.counters
        pools = {}
        for name, allocator in self.device.allocators.items():
            pool = self.tree.pool(name)
            pools[name] = PoolStats(
                total=allocator.page_count,
                used=allocator.used_pages,
                tree=pool.used_pages,
                leased=allocator.used_pages - pool.used_pages,
                protected=pool.protected_pages,
                stranded=pool.stranded_pages,
                page_bytes=pool.component.page_bytes,
                victims=c.victims.get(name, 0),
            )
        return CacheStats(
            requests=c.requests,
            prompt_tokens=c.prompt_tokens,
            hit_tokens=c.hit_tokens,
            replayed_tokens=c.replayed_tokens,
            evictions=c.evictions,
            tombstones=c.tombstones,
            deleted_nodes=c.deleted_nodes,
            duplicate_pages=c.duplicate_pages,
            refused=c.refused,
            nodes=self.tree.node_count,
            leases=len(self._leases),
            pools=pools,
        )

    def _check(self, lease: Lease) -> None:
        if lease.cache is not self:
            raise LeaseError(f"{lease} was released before" if lease.released else f"{lease} belongs to another cache")

    def take_in(self, result: InsertResult) -> None:
        """Free what an insert handed back."""
        for pages in (result.duplicates, result.replaced):
            self.device.give_back(pages)
            self.counters.duplicate_pages += sum(ids.size for ids in pages.values())
