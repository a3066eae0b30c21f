"""The page pools of a tier whose memory is one budget: what one kind of state lacks, another gives up."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from unified_tree.controllers.pages.page_allocator import BlockAllocator, Blocks
from unified_tree.controllers.pages.tier_pages import NOTHING, TierPages, least_cut
from unified_tree.eviction.evicting import evict_blocks
from unified_tree.terms.errors import ConfigurationError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.pages.block_tables import BlockTables
    from unified_tree.controllers.pages.page_allocator import PageAllocator
    from unified_tree.state.shared_pools import SharedPools
    from unified_tree.terms.results import EvictResult
    from unified_tree.tree import UnifiedTree


def tier_pages(tree: UnifiedTree, tier: Tier, page_counts: Mapping[str, int], counters: CacheCounters) -> TierPages:
    """The pools of a tier of a tree: of a shared budget where it has one, else of these page counts."""
    shared = tree.state.shared_pools[tier]
    return TierPages(tree, tier, page_counts, counters) if shared is None else SharedTierPages(tree, tier, shared, counters)


class SharedTierPages(TierPages):
    """The pools of a tier in one budget. Pages of several pools fit if their blocks do, all together.

    Attributes:
        blocks: what all pools' pages take.
        shared: the pools, as the tree has them.
    """

    is_one_budget: ClassVar[bool] = True

    def __init__(self, tree: UnifiedTree, tier: Tier, shared: SharedPools, counters: CacheCounters) -> None:
        super().__init__(tree, tier, {}, counters)
        self.shared = shared
        self.blocks = Blocks(shared.budget)
        self._page_blocks = dict(shared.budget.page_blocks)
        is_device = tier is Tier.DEVICE
        self._optional = [component.name for component in tree.components if is_device and not component.required]
        self._cuts = {name: least_cut(shared.budget.page_count(name), tree.page_size) for name in self._page_blocks}
        self.allocators: dict[str, PageAllocator] = {name: BlockAllocator(name, self.blocks) for name in self.allocators}

    def use(self, tables: BlockTables) -> None:
        """Have pages take their blocks in these tables from now on.

        Raises ConfigurationError for tables of another budget, for tables that another cache has used, and if there are pages
        already.
        """
        if tables.budget != self.blocks.budget:
            raise ConfigurationError(f"the blocks are of another budget, {tables.budget}; this tier has {self.blocks.budget}")
        if tables.is_in_use or self.blocks.used or self.blocks.tables is not None:
            raise ConfigurationError("a memory of blocks serves one cache, from its beginning on")
        tables.is_in_use = True
        self.blocks.tables = tables

    def _blocks_of(self, needs: Mapping[str, int]) -> int:
        blocks = 0
        for name, count in needs.items():
            blocks += count * self._page_blocks[name]
        return blocks

    def _are_free(self, components: list[int], counts: list[int]) -> bool:
        blocks = 0
        for at in range(len(components)):
            blocks += counts[at] * self._page_blocks[self._names[components[at]]]
        return blocks <= self.blocks.free

    def reserve(self, needs: Mapping[str, int]) -> None:
        """Evict until there are blocks for so many pages of each pool. Raises OutOfPagesError with nothing changed.

        Cost: O(components + log n) a victim; O(components) if enough are free.
        """
        short = self.check(needs)
        if not short:
            return
        wanted = 0
        for name, count in needs.items():
            wanted += count * self._page_blocks[name]
            if wanted > self.blocks.free:
                self._evict_blocks(name, wanted - self.blocks.free)
        if wanted > self.blocks.free:
            if self._is_relieved():
                self.reserve(needs)
                return
            raise self._refusal(short[0], needs[short[0]], "but what could be evicted stands above what is locked")

    def check(self, needs: Mapping[str, int], pinned: Mapping[str, int] = NOTHING) -> list[str]:
        """The pools for whose pages blocks are lacking: all that were named, or none. Raises OutOfPagesError if eviction could
        not help; on device it names an optional component if there are blocks for the required ones. Changes nothing. For
        `pinned` see TierPages.check. Cost: O(components).
        """
        missing = self._blocks_of(needs) - self.blocks.free
        if missing <= 0:
            return []
        short = [name for name, count in needs.items() if count]
        if missing > self.shared.evictable_blocks - self._blocks_of(pinned):
            if self._is_relieved():
                return self.check(needs, pinned)
            optional = [name for name in short if name in self._optional]
            spared = sum([needs[name] * self._page_blocks[name] for name in optional])
            named = optional if spared and missing - spared <= self.shared.evictable_blocks - self._blocks_of(pinned) else short
            largest = max(named, key=lambda name: needs[name] * self._page_blocks[name])
            raise self._refusal(largest, needs[largest], "the rest is locked, leased, on its way, or needed by the other pools")
        return short

    def fits(self, needs: Mapping[str, int], pinned: Mapping[str, int] = NOTHING) -> bool:
        """Whether there are so many blocks, free or evictable. Cost: O(components)."""
        return self._blocks_of(needs) <= self.available_blocks - self._blocks_of(pinned)

    def are_free(self, needs: Mapping[str, int]) -> bool:
        """Whether so many blocks are free. Cost: O(components)."""
        return self._blocks_of(needs) <= self.blocks.free

    @property
    def available_blocks(self) -> int:
        """Blocks that are free or could be. Cost: O(components)."""
        return self.blocks.free + self.shared.evictable_blocks

    def try_reserve(self, name: str) -> bool:
        """Whether there are blocks for a page of the pool now, after evicting if necessary."""
        missing = self._page_blocks[name] - self.blocks.free
        if 0 < missing <= self.shared.evictable_blocks:
            self._evict_blocks(name, missing)
        return self.blocks.free >= self._page_blocks[name]

    def _evictable(self, name: str) -> int:
        """Pages of one pool that evicting, of whatever pool, could make room for."""
        return self.shared.evictable_blocks // self._page_blocks[name]

    def _evict_blocks(self, name: str, count: int) -> EvictResult:
        """Evict blocks of any pool, for pages of one."""
        result: EvictResult | None = None
        try:
            result = evict_blocks(self._state, count, self._tier, self._cuts[name])
            self.free_evicted(result)
            self._counters.evicted(self._tier, name, result)
            return result
        except BaseException:
            if result is not None:
                self.free_rest(result)
            raise
