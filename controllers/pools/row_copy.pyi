"""The C module beside this file; missing where nothing is compiled."""

import numpy as np
from numpy.typing import NDArray

def copy_rows(
    parts: NDArray[np.int64], targets: NDArray[np.int64], sources: NDArray[np.int64], share: int, shares: int, /
) -> None:
    """Copy share `share` of `shares` equal ones of some pages' rows, without the interpreter lock.

    Args:
        parts: [part, 11]: where page 0 is written and read (addresses); layers, slots, bytes a row, all positive; strides of
            a layer, a page and a slot where it is written, then where it is read, in bytes.
        targets, sources: [n] page ids. Nobody checks that they, or any address, are within memory.

    Raises ValueError for shapes that do not fit, and a share that is none. Cost: O(bytes of the share).
    """
