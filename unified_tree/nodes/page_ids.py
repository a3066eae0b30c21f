"""Page ids as callers pass them, and where effects take theirs from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.native.int64 import INT64
from unified_tree.terms.errors import PageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def page_ids(name: str, given: Any) -> NDArray[np.int64]:
    """The ids given for a component's pages as an int64 array, which may be the caller's own.

    Raises PageError for anything but a one-dimensional sequence of integers. A ledger checks that they are ids of the pool.
    """
    if type(given) is np.ndarray and given.dtype is INT64 and given.ndim == 1:
        return given
    try:
        values = np.asarray(given)
    except (ValueError, TypeError, OverflowError) as error:
        raise PageError(f"{name}: pages must be a one-dimensional sequence of integers: {error}") from error
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise PageError(f"{name}: pages must be a one-dimensional integer array, not {values.dtype} of shape {values.shape}")
    if values.dtype.kind == "u" and values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise PageError(f"{name}: page ids must fit in 63 bits, got {values.max()}")
    return values.astype(np.int64)


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
