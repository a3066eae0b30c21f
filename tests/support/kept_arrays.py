"""Arrays that were handed out, which must say for ever what they said first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

MAX_KEPT = 60


class KeptArrays:
    """The last arrays handed out, and what was in them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[str, NDArray[np.int64], bytes]] = deque(maxlen=MAX_KEPT)

    def keep(self, what: str, array: NDArray[np.int64]) -> None:
        """Remember an array."""
        self._kept.append((what, array, array.tobytes()))

    def keep_all(self, what: str, arrays: Mapping[str, NDArray[np.int64]]) -> None:
        """Remember arrays by component."""
        for name, array in arrays.items():
            self.keep(f"{what} of {name}", array)

    def check(self) -> None:
        """None of them has changed."""
        for what, array, content in self._kept:
            assert array.tobytes() == content, (
                f"{what} changed after it was handed out: it was {np.frombuffer(content, np.int64)}"
            )


def buffers(arrays: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """The same in arrays of their own, as a caller gives them that will use these again."""
    return {name: array.copy() for name, array in arrays.items()}


def reuse(arrays: Mapping[str, NDArray[np.int64]]) -> None:
    """Write something else into them."""
    for array in arrays.values():
        array[:] = -9
