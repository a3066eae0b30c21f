"""The tree's names for pages that an engine's allocator has handed out.

An engine on a GPU keeps slot numbers in device memory, and reading them back would stall its stream. So the tree gets page
numbers of its own, its *names*, and a table in device memory says which of the engine's pages each name stands for. Naming
pages and looking them up are then a scatter and a gather on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from unified_tree.controllers.host.page_allocator import PageAllocator

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_CAPACITY = 1024


class PageNames:
    """The names of one component's pages.

    Args:
        component: its name, for messages.
        device: where the engine keeps its slot numbers.

    >>> import torch
    >>> from unified_tree.controllers.sglang.page_names import PageNames
    >>> names = PageNames("full", torch.device("cpu"))
    >>> given = names.assign(torch.tensor([70, 71]))
    >>> names.pages(given).tolist()
    [70, 71]
    """

    def __init__(self, component: str, device: torch.device) -> None:
        self._allocator = PageAllocator(component, None)
        self._table = torch.zeros(FIRST_CAPACITY, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        """How many names are in use."""
        return self._allocator.used_pages

    def assign(self, pages: torch.Tensor) -> NDArray[np.int64]:
        """New names for the engine's `pages`, int64 [count]; names, int64 [count]. Cost: one scatter, nothing is read back."""
        names = self._allocator.allocate(pages.numel())
        top = int(names.max(initial=-1)) + 1
        if top > self._table.numel():
            grown = self._table.new_zeros(max(top, 2 * self._table.numel()))
            grown[: self._table.numel()] = self._table
            self._table = grown
        self._table[self.index(names)] = pages
        return names

    def pages(self, names: NDArray[np.int64]) -> torch.Tensor:
        """The engine's pages of these names, int64 [count], in device memory. Cost: one gather."""
        return self._table[self.index(names)]

    def release(self, names: NDArray[np.int64]) -> None:
        """Forget names. Raises PageError, with nothing changed, for one that is not in use."""
        self._allocator.free(names)

    def index(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """An index in device memory from one in host memory, without waiting for the device."""
        return torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy()).to(
            self._table.device, non_blocking=True
        )
