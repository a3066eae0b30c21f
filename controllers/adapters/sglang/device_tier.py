"""SGLang's device pools as the hybrid cache controller sees them: free lists, and eviction when one is short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from unified_tree.controllers.adapters.sglang.device_pools import FULL, STATE, WINDOW
from unified_tree.controllers.pages.tier_pages import least_cut
from unified_tree.eviction.evicting import evict, evict_over_caps
from unified_tree.terms.errors import OutOfPagesError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.adapters.sglang.device_pools import DevicePools
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.pages.tier_pages import DevicePages, PageWatcher
    from unified_tree.terms.results import Boundary, EvictResult
    from unified_tree.tree import UnifiedTree


class FreeList:
    """One pool's free pages, counted.

    Attributes:
        page_count: pages of the whole pool.
    """

    def __init__(self, pools: DevicePools, component: str) -> None:
        self._pools = pools
        self._component = component
        self.page_count = pools.page_count(component)

    @property
    def free_pages(self) -> int:
        """Pages that can be allocated now without an eviction."""
        return self._pools.free_pages(self._component)

    @property
    def used_pages(self) -> int:
        """How many are not free."""
        return self.page_count - self._pools.free_pages(self._component)


class DeviceTier:
    """The device pools of one cache.

    Args:
        counters: count what is evicted.

    Attributes:
        allocators: the free list of each pool, by component.
        other_tier: the host pools, whose pages an eviction here may free; None without a host tier.
        watcher: is told of every page that lands or is freed; None for nobody.
        finish_copy: ends the oldest of the copies that keep pages from being evicted, by waiting for it; returns whether there
            was one. None without a host tier.
    """

    def __init__(self, tree: UnifiedTree, pools: DevicePools, counters: CacheCounters) -> None:
        self._tree = tree
        self._counters = counters
        self._page_size: int = tree.page_size
        self._pools = pools
        owners = [component.name for component in tree.components if component.shares is None]
        self.allocators = {name: FreeList(pools, name) for name in owners}
        self._cut_pages = least_cut(self.allocators[FULL].page_count, tree.page_size)
        self.other_tier: DevicePages | None = None
        self.watcher: PageWatcher | None = None
        self.finish_copy: Callable[[], bool] | None = None

    def landed(self, boundary: Boundary) -> None:
        """Pages that were loaded are the tree's now, on the path to a boundary."""
        if self.watcher is not None:
            self._counters.tell(self.watcher.landed, Tier.DEVICE, boundary)

    def evict(self, needs: Mapping[str, int]) -> dict[str, int]:
        """Evict at least so many pages of each pool, or as many as can go; how many came free, by component.

        SGLang counts what is evictable when it admits a request, and evicts when it allocates: behind the loads of the batch,
        and for a long prompt steps later. Copies to host that began in between keep pages that were counted. So where a pool
        falls short, this waits for copies, the oldest first, until it does not.
        """
        freed = self._evict_now(needs)
        if self.finish_copy is not None:
            for name, count in needs.items():
                if count > freed.get(name, 0):
                    self._wait(name, count - freed.get(name, 0), freed)
        return freed

    def _wait(self, name: str, missing: int, freed: dict[str, int]) -> None:
        """Wait for copies until so many more pages of a pool are free, and add what was evicted to `freed`."""
        assert self.finish_copy is not None
        wanted = self._pools.free_pages(name) + missing
        while True:
            missing = wanted - self._pools.free_pages(name)  # the pages of a load that was cancelled are free at once
            if missing > 0:
                for freed_name, count in self._evict_now({name: missing}).items():
                    freed[freed_name] = freed.get(freed_name, 0) + count
            if self._pools.free_pages(name) >= wanted or not self.finish_copy():
                break

    def _evict_now(self, needs: Mapping[str, int]) -> dict[str, int]:
        """As `evict`, without waiting."""
        freed: dict[str, int] = {}
        for name, count in needs.items():
            missing = count - freed.get(name, 0)
            if missing <= 0:
                continue  # came free with the victims of another pool
            result = evict(self._tree.state, {name: missing}, Tier.DEVICE, self._cut_pages)
            self.free_evicted(result)
            self._counters.evicted(Tier.DEVICE, name, result)
            for freed_name, names in result.freed.items():
                freed[freed_name] = freed.get(freed_name, 0) + len(names)
        return freed

    def hold_caps(self) -> None:
        """Evict what groups of namespaces hold beyond their caps. Cost: O(pools) if no group does, O(1) without groups."""
        pools = self._tree.state.device_pools if self._tree.state.rooms else ()
        over = [pool.component.name for pool in pools if pool.shares is not None and pool.shares.over_cap]
        if over:
            result = evict_over_caps(self._tree.state, Tier.DEVICE)
            self.free_evicted(result)
            self._counters.evicted(Tier.DEVICE, over[0], result)

    def evict_tokens(self, full: int, windows: int, states: int) -> tuple[int, int, int]:
        """As `evict`, of the pools that there are: so many tokens, tokens of windows, and states; as many came free."""
        size, has = self._page_size, self.allocators
        needs: dict[str, int] = {}
        if full > 0:
            needs[FULL] = -(-full // size)
        if windows > 0 and WINDOW in has:
            needs[WINDOW] = -(-windows // size)
        if states > 0 and STATE in has:
            needs[STATE] = states
        if not needs:
            return 0, 0, 0
        freed = self.evict(needs)
        return freed.get(FULL, 0) * size, freed.get(WINDOW, 0) * size, freed.get(STATE, 0)

    def reserve(self, needs: Mapping[str, int]) -> None:
        """Evict until each pool has so many free pages. Raises OutOfPagesError if one cannot have them."""
        for name, count in needs.items():
            missing = count - self.allocators[name].free_pages
            if missing > 0 and missing <= self._tree.pool(name).evictable_pages:
                self._evict_now({name: missing})  # a load, whose effect has begun, waits for no other
            if self.allocators[name].free_pages < count:
                pool = self._tree.pool(name)
                free, evictable = self.allocators[name].free_pages, pool.evictable_pages
                raise OutOfPagesError(
                    f"{name}: {count} device pages needed, {free} are free and {evictable} evictable",
                    component=name,
                    tier=Tier.DEVICE,
                    needed=count,
                    free=free,
                    evictable=evictable,
                    total=self.allocators[name].page_count,
                )

    def allocate_all(self, needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
        """Reserve and allocate in several pools, all or nothing; page names by component. Raises OutOfPagesError."""
        self.reserve(needs)
        return {name: self._pools.allocate(name, count) for name, count in needs.items()}

    def free_all(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Free pages of several pools, by component and name."""
        if self.watcher is not None:
            for name, names in pages.items():
                self._counters.tell(self.watcher.freed, Tier.DEVICE, name, names)
        self._pools.free(pages)

    def free_evicted(self, result: EvictResult) -> None:
        """Free the pages that an eviction on device returned, of both tiers."""
        self.free_all(result.freed)
        if result.freed_elsewhere:
            assert self.other_tier is not None, "without a host tier nothing is freed there"
            self.other_tier.free_all(result.freed_elsewhere)
