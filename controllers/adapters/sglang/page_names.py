"""The tree's names for pages that an engine's allocator has handed out.

An engine on a GPU keeps slot numbers in device memory, and reading them back would stall its stream. So the tree gets page
numbers of its own, its *names*, and a table in device memory says which of the engine's pages each name stands for. Naming
pages and looking them up are then a scatter and a gather on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from unified_tree.controllers.pools.page_moves import device_index
from unified_tree.state.page_set import PageSet
from unified_tree.terms.errors import PageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_CAPACITY = 1024


class PageNames:
    """The names of one component's pages: small numbers, used again once they are released.

    Args:
        device: where the engine keeps its slot numbers.

    Attributes:
        capacity: all names are less than this; it grows when they run out.

    >>> import torch
    >>> from unified_tree.controllers.adapters.sglang.page_names import PageNames
    >>> names = PageNames(torch.device("cpu"))
    >>> given = names.assign(torch.tensor([70, 71]))
    >>> names.pages(given).tolist()
    [70, 71]
    """

    def __init__(self, device: torch.device | str) -> None:
        self._table = torch.zeros(FIRST_CAPACITY, dtype=torch.int64, device=device)
        self._outgrown: list[torch.Tensor] = []  # streams of copies may read them still; together no longer than the table
        self._free = np.arange(FIRST_CAPACITY, dtype=np.int64)[::-1].copy()  # a stack
        self._free_count = FIRST_CAPACITY
        self._used = PageSet(FIRST_CAPACITY)
        self.capacity = FIRST_CAPACITY

    def __len__(self) -> int:
        """How many names are in use."""
        return self.capacity - self._free_count

    def assign(self, pages: torch.Tensor) -> NDArray[np.int64]:
        """New names for the engine's `pages`, int64 [count]; names, int64 [count]. Cost: one scatter, nothing is read back."""
        count = pages.numel()
        if count > self._free_count:
            self._grow(count)
        self._free_count -= count
        names = self._free[self._free_count : self._free_count + count].copy()
        self._used.add(names)
        self._table[self._index(names)] = pages
        return names

    def pages(self, names: NDArray[np.int64]) -> torch.Tensor:
        """The engine's pages of these names, int64 [count], in device memory. Cost: one gather."""
        return self._table[self._index(names)]

    def release(self, names: NDArray[np.int64]) -> None:
        """Let names be used again. Raises PageError, with nothing changed, for one that is not in use."""
        if not self._used.all_are(names, members=True):
            raise PageError(f"a page's name was released twice, or never given, among {names[:8].tolist()}")
        self._used.discard(names)
        self._free[self._free_count : self._free_count + names.size] = names
        self._free_count += names.size

    def _index(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        return device_index(numbers, self._table.device)

    def _grow(self, count: int) -> None:
        """Make room for at least `count` more names."""
        before = self.capacity
        size = max(2 * before, before + count)
        table = self._table.new_zeros(size)
        table[:before] = self._table
        free = np.empty(size, np.int64)
        added = size - before
        free[:added] = np.arange(size - 1, before - 1, -1)
        free[added : added + self._free_count] = self._free[: self._free_count]
        self._outgrown.append(self._table)
        self._table, self._free, self._free_count = table, free, self._free_count + added
        self._used.grow(size)
        self._used.cover(size)
        self.capacity = size
