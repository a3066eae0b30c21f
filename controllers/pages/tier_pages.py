"""The page pools of one tier: free lists, and eviction when one is short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import numpy as np

from unified_tree.controllers.pages.page_allocator import BlockAllocator, PageAllocator
from unified_tree.eviction.evicting import evict, evict_over_caps
from unified_tree.inputs.printable import repr_of
from unified_tree.state.page_set import PageSource
from unified_tree.terms.errors import ConfigurationError, OutOfPagesError
from unified_tree.terms.results import EvictResult
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.terms.results import Boundary, InsertResult
    from unified_tree.tree import UnifiedTree


NOTHING: Final[dict[str, int]] = {}
CUT_TOKENS: Final = 32
CUT_SHARE: Final = 128
"""A leaf is cut to what is needed, but loses no less than so many tokens and this part of its pool: a call frees room for some
steps, and what stays of a leaf is copied so many times at most until it is gone."""


class PageWatcher(Protocol):
    """Is told which pages of a tier the tree takes and gives up."""

    def landed(self, tier: Tier, boundary: Boundary) -> None:
        """A transfer, or a fetch from a store, put pages into the tree, on the path to this boundary."""

    def freed(self, tier: Tier, component: str, names: NDArray[np.int64]) -> None:
        """Pages were freed, whether the tree had them or not."""


class FreePages(Protocol):
    """The free list of one pool; a PageAllocator is one."""

    @property
    def page_count(self) -> int | None:
        """Pages in the pool; None for no limit."""
        ...

    @property
    def used_pages(self) -> int:
        """How many pages are not free."""
        ...

    @property
    def free_pages(self) -> int:
        """How many pages can be allocated now without an eviction."""
        ...


def total_pages(allocator: FreePages) -> int | None:
    """Pages in a pool, None for no limit; of a pool in a shared budget those that it has, and those that it could have without
    taking any from another.
    """
    return allocator.used_pages + allocator.free_pages if isinstance(allocator, BlockAllocator) else allocator.page_count


def least_cut(page_count: int | None, page_size: int) -> int:
    """How many pages of a leaf's end go at a time, at least, where not all of it has to."""
    return max(-(-CUT_TOKENS // page_size), (page_count or 0) // CUT_SHARE)


class DevicePages(Protocol):
    """The device pages behind a host tier: a cache's own, or an engine's.

    Attributes:
        other_tier: the host's, once there is one.
    """

    other_tier: DevicePages | None

    @property
    def allocators(self) -> Mapping[str, FreePages]:
        """The free list of each pool, by component."""
        ...

    def reserve(self, needs: Mapping[str, int]) -> None:
        """See TierPages.reserve."""

    def allocate_all(self, needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
        """See TierPages.allocate_all."""
        ...

    def free_all(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """See TierPages.free_all."""

    def free_evicted(self, result: EvictResult) -> None:
        """See TierPages.free_evicted."""

    def landed(self, boundary: Boundary) -> None:
        """See TierPages.landed."""


class TierPages(PageSource):
    """One allocator per component with its own pages on a tier; evicts from the tree what the free lists lack.

    Attributes:
        other_tier: the pools of the other tier, whose pages an eviction here may free; None without another tier.
        watcher: is told of every page that lands or is freed; None for nobody.
        relief: is called before a request is refused, and says whether it made more pages evictable; None without one.
        is_one_budget: whether pages of one pool make room for those of another.
    """

    is_one_budget: ClassVar[bool] = False

    def __init__(self, tree: UnifiedTree, tier: Tier, page_counts: Mapping[str, int], counters: CacheCounters) -> None:
        self._state = tree.state
        self._tier = tier
        self._counters = counters
        self._names = [component.name for component in tree.components]
        owners = [c for c in tree.components if tier is Tier.HOST or c.shares is None]
        self.allocators: dict[str, PageAllocator] = {c.name: PageAllocator(c.name, page_counts.get(c.name)) for c in owners}
        self.other_tier: DevicePages | None = None
        self.watcher: PageWatcher | None = None
        self.relief: Callable[[], bool] | None = None
        self._pools = {c.name: tree.pool(c.name, tier) for c in owners}
        self._cuts = {c.name: least_cut(page_counts.get(c.name), tree.page_size) for c in owners}

    def landed(self, boundary: Boundary) -> None:
        """Pages that did not come from an insert are the tree's now, on the path to a boundary."""
        if self.watcher is not None:
            self._counters.tell(self.watcher.landed, self._tier, boundary)

    def take_one(self, name: str) -> int:
        """A page id, after evicting if necessary. Raises as `reserve`, with nothing changed."""
        allocator = self.allocators[name]
        if not allocator.free_pages:
            self.reserve({name: 1})
        return allocator.allocate_one()

    def allocate_one(self, name: str) -> int:
        """A page id that was reserved; see PageAllocator.allocate_one."""
        return self.allocators[name].allocate_one()

    def allocate(self, name: str, page_count: int) -> NDArray[np.int64]:
        """Page ids that were reserved; see PageAllocator.allocate."""
        return self.allocators[name].allocate(page_count)

    def allocate_all(self, needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
        """Reserve and allocate in several pools, all or nothing. Raises OutOfPagesError with nothing changed."""
        self.reserve(needs)
        return self.take(needs)

    def take(self, needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
        """Allocate in several pools what was reserved, all or nothing. Raises OutOfPagesError if there is no memory."""
        taken: dict[str, NDArray[np.int64]] = {}
        try:
            for name, count in needs.items():
                taken[name] = self.allocators[name].allocate(count)
            return taken
        except BaseException:
            self.free_all(taken)
            raise

    def take_each(self, components: list[int], counts: list[int]) -> list[NDArray[np.int64]]:
        """See PageSource.take_each."""
        names = self._names
        if not self._are_free(components, counts):
            self.reserve({names[i]: count for i, count in zip(components, counts, strict=True)})
        taken: list[NDArray[np.int64]] = []
        try:
            for at in range(len(components)):
                taken.append(self.allocators[names[components[at]]].allocate(counts[at]))  # noqa: PERF401, each must be known
            return taken
        except BaseException:
            for i, pages in zip(components, taken, strict=False):
                self.free(names[i], pages)
            raise

    def _are_free(self, components: list[int], counts: list[int]) -> bool:
        """Whether so many pages can be allocated without an eviction."""
        are_free = True
        for at in range(len(components)):  # compiled, a generator would be an object
            are_free = are_free and counts[at] <= self.allocators[self._names[components[at]]].free_pages
        return are_free

    def free(self, name: str, ids: NDArray[np.int64]) -> None:
        """Free pages; see PageAllocator.free."""
        if self.watcher is not None:
            self._counters.tell(self.watcher.freed, self._tier, name, ids)
        self.allocators[name].free(ids)

    def free_one(self, name: str, page: int) -> None:
        """Free a page; see PageAllocator.free_one."""
        if self.watcher is not None:
            self._counters.tell(self.watcher.freed, self._tier, name, np.array([page], np.int64))
        self.allocators[name].free_one(page)

    def has_allocated(self, name: str, page: int) -> bool:
        """Whether a page is not free; so whether a free that was interrupted has been made. Cost: O(1)."""
        return self.allocators[name].is_allocated(page)

    def free_all(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Free pages of several pools."""
        for name, ids in pages.items():
            self.free(name, ids)

    def free_evicted(self, result: EvictResult) -> None:
        """Free the pages that an eviction on this tier returned, of both tiers."""
        self.free_all(result.freed)
        if result.freed_elsewhere:
            assert self.other_tier is not None, "without another tier nothing is freed there"
            self.other_tier.free_all(result.freed_elsewhere)

    def free_unused(self, result: InsertResult, *, again: bool = False) -> int:
        """Free the pages that an insert returned; returns how many pages.

        Args:
            again: this was interrupted, and some may be free already.
        """
        count = 0
        for pages in (result.duplicates, result.replaced):
            for name, ids in pages.items():
                if not again or self.has_allocated(name, int(ids[0])):
                    self.free(name, ids)
                    count += ids.size
        return count

    def reserve(self, needs: Mapping[str, int]) -> None:
        """Evict until each pool has so many free pages. Raises OutOfPagesError with nothing changed.

        Cost: O(log n) a victim; nothing if the free lists suffice.
        """
        short = self.check(needs)
        if not short:
            return
        self._evict(short, needs)
        for name in short:
            if self.allocators[name].free_pages < needs[name]:
                if self._is_relieved():
                    self.reserve(needs)
                    return
                raise self._refusal(name, needs[name], "but what could be evicted stands above what is locked")

    def evict(self, needs: Mapping[str, int]) -> EvictResult:
        """Evict at least so many pages of each named pool, or as many as can go; free and count them. See UnifiedTree.evict."""
        for name in needs:
            if name not in self.allocators:
                raise ConfigurationError(
                    f"cannot evict from {repr_of(name)}: it has no {self._tier.name.lower()} pages of its own"
                )
        result = EvictResult({}, {}, 0, 0, 0, 0)
        for name, count in needs.items():
            already = result.freed.get(name)
            result = merged(result, self._evict_from(name, count if already is None else max(0, count - already.size)))
        return result

    def check(self, needs: Mapping[str, int], pinned: Mapping[str, int] = NOTHING) -> list[str]:
        """The pools that are short of free pages. Raises OutOfPagesError if eviction could not help. Changes nothing.

        Args:
            pinned: evictable pages by component that will be locked before.
        """
        short = [name for name, count in needs.items() if count > self.allocators[name].free_pages]
        for name in short:
            if needs[name] - self.allocators[name].free_pages > self._evictable(name) - pinned.get(name, 0):
                if self._is_relieved():
                    return self.check(needs, pinned)
                raise self._refusal(name, needs[name], "the rest is locked, leased or on its way")
        return short

    def _is_relieved(self) -> bool:
        return self.relief is not None and self.relief()

    def fits(self, needs: Mapping[str, int], pinned: Mapping[str, int] = NOTHING) -> bool:
        """Whether each pool has so many free or evictable pages; for `pinned` see `check`. Cost: O(components)."""
        return all(
            count + pinned.get(name, 0) <= self.allocators[name].free_pages + self._evictable(name)
            for name, count in needs.items()
        )

    def has_room(self, needs: Mapping[str, int], pinned: Mapping[str, int] = NOTHING) -> bool:
        """As `fits`, once `relief` has made more pages evictable if that is needed."""
        return self.fits(needs, pinned) or (self._is_relieved() and self.fits(needs, pinned))

    def are_free(self, needs: Mapping[str, int]) -> bool:
        """Whether each pool has so many free pages. Cost: O(components)."""
        are_free = True
        for name, count in needs.items():  # compiled, a generator would be an object
            are_free = are_free and count <= self.allocators[name].free_pages
        return are_free

    def _evictable(self, name: str) -> int:
        """Pages of a pool that could be evicted."""
        return self._pools[name].evictable_pages

    def try_reserve(self, name: str) -> bool:
        """Whether the pool has a free page now, after evicting one if necessary."""
        allocator = self.allocators[name]
        if not allocator.free_pages and self._pools[name].evictable_pages:
            self._evict((name,), {name: 1})
        return allocator.free_pages > 0

    def _refusal(self, name: str, needed: int, why: str) -> OutOfPagesError:
        if self._tier is Tier.DEVICE:
            self._counters.refused += 1
        allocator, evictable = self.allocators[name], self._evictable(name)
        if allocator.page_count is not None and needed > allocator.page_count:
            why = "that many can never be had: the pool is smaller"
        return OutOfPagesError(
            f"{name}: {needed} pages needed on {self._tier.name.lower()}, {allocator.free_pages} are free and {evictable} "
            f"evictable of {allocator.page_count}; {why}",
            component=name,
            tier=self._tier,
            needed=needed,
            free=allocator.free_pages,
            evictable=evictable,
            total=allocator.page_count,
        )

    def _evict(self, names: Iterable[str], needs: Mapping[str, int]) -> None:
        for name in names:
            missing = needs[name] - self.allocators[name].free_pages
            if missing <= 0:
                continue  # came free with the victims of another pool
            self._evict_from(name, missing)

    def _evict_from(self, name: str, page_count: int) -> EvictResult:
        """Every eviction of this tier passes here, so that what was evicted is counted and told."""
        result: EvictResult | None = None
        try:
            result = evict(self._state, {name: page_count}, self._tier, self._cuts[name])
            self.free_evicted(result)
            self._counters.evicted(self._tier, name, result)
            return result
        except BaseException:
            if result is not None:
                self.free_rest(result)
            raise

    def hold_caps(self) -> None:
        """Evict what groups of namespaces hold beyond their caps; see `UnifiedTree.evict_over_caps`."""
        result: EvictResult | None = None
        over = [name for name, pool in self._pools.items() if pool.shares is not None and pool.shares.over_cap]
        if not over:
            return
        try:
            result = evict_over_caps(self._state, self._tier)
            self.free_evicted(result)
            self._counters.evicted(self._tier, over[0], result)
        except BaseException:
            if result is not None:
                self.free_rest(result)
            raise

    def free_rest(self, result: EvictResult) -> None:
        """As `free_evicted`, which was interrupted: free what it has not freed."""
        for tier, freed in ((self, result.freed), (self.other_tier, result.freed_elsewhere)):
            for name, ids in freed.items():
                if ids.size and isinstance(tier, TierPages) and tier.has_allocated(name, int(ids[0])):
                    tier.free(name, ids)


def merged(first: EvictResult, second: EvictResult) -> EvictResult:
    """What two evictions freed."""
    freed, elsewhere = _joined(first.freed, second.freed), _joined(first.freed_elsewhere, second.freed_elsewhere)
    counts = [one + other for one, other in zip(first[2:], second[2:], strict=True)]
    return EvictResult(freed, elsewhere, *counts)


def _joined(first: dict[str, NDArray[np.int64]], second: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    joined = {**first, **second}
    for name in first.keys() & second.keys():
        joined[name] = np.concatenate((first[name], second[name]))
    return joined
