"""The free lists of pools that share one budget of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.host.page_allocator import PageAllocator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.block_budget import BlockBudget
    from unified_tree.controllers.pools.block_tables import BlockTables


class Blocks:
    """The blocks of one tier.

    Attributes:
        budget: how many there are.
        used: how many of them pages take now.
        tables: says which; None where that is nobody's to know.
    """

    __slots__ = ("budget", "count", "tables", "used")

    def __init__(self, budget: BlockBudget) -> None:
        self.budget = budget
        self.count = budget.block_count
        self.used = 0
        self.tables: BlockTables | None = None

    @property
    def free(self) -> int:
        """How many no page takes."""
        return self.count - self.used


class BlockAllocator(PageAllocator):
    """The free list of one pool's page ids, whose pages take blocks of a common store of them.

    Ids are dense up to the most pages that the pool could have, so an array by page id says where its blocks are.

    Args:
        name: of the component.
        blocks: what its pages take blocks of, with other pools.
    """

    __slots__ = ("_blocks", "_page_blocks")

    def __init__(self, name: str, blocks: Blocks) -> None:
        super().__init__(name, blocks.budget.page_count(name))
        self._blocks = blocks
        self._page_blocks = blocks.budget.page_blocks[name]

    @property
    def free_pages(self) -> int:
        """How many pages can be allocated now, were no other pool to allocate any."""
        return self._blocks.free // self._page_blocks

    def allocate(self, page_count: int) -> NDArray[np.int64]:
        ids = super().allocate(page_count)
        self._blocks.used += page_count * self._page_blocks
        if self._blocks.tables is not None:
            self._blocks.tables.assign(self.name, ids)
        return ids

    def allocate_one(self) -> int:
        page = super().allocate_one()
        self._blocks.used += self._page_blocks
        if self._blocks.tables is not None:
            self._blocks.tables.assign(self.name, np.array([page], np.int64))
        return page

    def free(self, ids: NDArray[np.int64]) -> None:
        super().free(ids)
        self._blocks.used -= len(ids) * self._page_blocks
        if self._blocks.tables is not None:
            self._blocks.tables.release(self.name, ids)

    def free_one(self, page: int) -> None:
        super().free_one(page)
        self._blocks.used -= self._page_blocks
        if self._blocks.tables is not None:
            self._blocks.tables.release(self.name, np.array([page], np.int64))
