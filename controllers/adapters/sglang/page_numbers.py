"""The engine's own page numbers as the tree's names for pages, where they can be read without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class PageNumbers:
    """As `PageNames`, for an engine whose slot numbers are in host memory: each page's name is its number.

    Attributes:
        capacity: all names are less than this; it grows.

    >>> import numpy as np
    >>> from unified_tree.controllers.adapters.sglang.page_numbers import PageNumbers
    >>> names = PageNumbers(100)
    >>> names.assign(np.array([70, 71])).tolist(), len(names)
    ([70, 71], 2)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def assign(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The names of pages that the engine has handed out: the same array."""
        self._count += len(pages)
        return pages

    def pages(self, names: NDArray[np.int64]) -> NDArray[np.int64]:
        """The engine's pages of these names: the same array."""
        return names

    def release(self, names: NDArray[np.int64]) -> None:
        """The engine has its pages back."""
        self._count -= len(names)
