"""Which blocks each page of a shared budget has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.block_budget import BlockBudget


class BlockTables:
    """The blocks of every page, and those that no page has.

    The allocators of a `PrefixCache` give pages their blocks and take them back through this; see `BlockArena.serve` and
    `HostTier.tables`.

    Attributes:
        is_in_use: whether the pages of a cache have their blocks from here; see `SharedTierPages.use`.
        tables: by component with pages of its own, block numbers, int32 [page, block of the page]; rows of free pages mean
            nothing.

    Memory: 4 bytes a block, and as many for each pool as far as its rows were written.
    """

    def __init__(self, budget: BlockBudget) -> None:
        self.budget = budget
        self.is_in_use = False
        self.tables: dict[str, NDArray[np.int32]] = {
            name: np.zeros((budget.page_count(name), blocks), np.int32) for name, blocks in budget.page_blocks.items()
        }
        self._free = np.arange(budget.block_count, dtype=np.int32)[::-1].copy()
        self.free_count = budget.block_count

    def check_assigned(self) -> None:
        """Raise ConfigurationError if no page has any blocks: nobody has said that a cache takes them from here."""
        if self.free_count == self.budget.block_count:
            raise ConfigurationError(
                "no page has blocks: `BlockArena.serve` or `HostTier(tables=...)` tells a cache to take them from these tables"
            )

    def assign(self, component: str, pages: NDArray[np.int64]) -> None:
        """Give pages that were just allocated their blocks. Cost: O(blocks)."""
        table = self.tables[component]
        count = len(pages) * table.shape[1]
        assert count <= self.free_count, "the allocators count the same blocks"
        table[pages] = self._free[self.free_count - count : self.free_count][::-1].reshape(len(pages), table.shape[1])
        self.free_count -= count

    def release(self, component: str, pages: NDArray[np.int64]) -> None:
        """Take the blocks of pages that were just freed. Cost: O(blocks)."""
        blocks = self.tables[component][pages].reshape(-1)
        self._free[self.free_count : self.free_count + len(blocks)] = blocks
        self.free_count += len(blocks)
