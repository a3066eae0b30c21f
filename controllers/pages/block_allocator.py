"""The free lists of pools that share one budget of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pages.page_allocator import PageAllocator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.pages.block_tables import BlockTables
    from unified_tree.declare.block_budget import BlockBudget


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
        blocks, before, held = self._blocks, self._blocks.used, self.used_pages
        free = 0 if blocks.tables is None else blocks.tables.free_count
        ids: NDArray[np.int64] | None = None
        try:
            ids = super().allocate(page_count)
            blocks.used = before + page_count * self._page_blocks
            if blocks.tables is not None:
                blocks.tables.assign(self.name, ids)
            return ids
        except BaseException:
            if ids is not None and self.used_pages != held:
                if blocks.tables is not None and blocks.tables.free_count != free:
                    blocks.tables.release(self.name, ids)
                super().free(ids)
            blocks.used = before
            raise

    def allocate_one(self) -> int:
        return int(self.allocate(1)[0])

    def free(self, ids: NDArray[np.int64]) -> None:
        blocks, before, held = self._blocks, self._blocks.used, self.used_pages
        try:
            super().free(ids)
            blocks.used = before - len(ids) * self._page_blocks
            if blocks.tables is not None:
                blocks.tables.release(self.name, ids)
        except BaseException:
            blocks.used = before
            if self.used_pages != held:
                self._go_back(self._stack[: -len(ids)], self._unused)
            raise

    def free_one(self, page: int) -> None:
        self.free(np.array([page], np.int64))
