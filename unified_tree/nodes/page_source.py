"""Where the pages of a tier come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class PageSource:
    """A tier's free pages, for effects that take their targets there. The base of whatever has them; it has none.

    An effect may ask it instead of a function or a mapping, and is spared most of the checks of what it is given.
    """

    __slots__ = ()

    def take_each(self, components: list[int], counts: list[int]) -> list[NDArray[np.int64]]:
        """So many pages of each of these components, which may evict unlocked values of the tree, all or nothing.

        Raises OutOfPagesError with nothing changed. Nobody changes the arrays.
        """
        raise NotImplementedError
