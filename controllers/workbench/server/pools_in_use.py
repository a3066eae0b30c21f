"""How much of a cache's pools is in use: a scheduler asks so often that whole statistics would cost more than requests do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.cache.stats import BudgetStats

if TYPE_CHECKING:
    from unified_tree.controllers.cache.prefix_cache import PrefixCache


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
