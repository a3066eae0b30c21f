"""The recency order of a model's windows or states; the distance of a value is how many others are more recent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 512


class ValueOrder:
    """Counts by time, and their sums from any time on.

    >>> order = ValueOrder()
    >>> old = order.add()
    >>> new = order.add()
    >>> order.above(old), order.above(new)
    (1, 0)
    >>> order.remove(new)
    >>> order.above(old)
    0

    Cost: O(1) to add and remove; a distance is a sum over n / 512 chunks, with n the times so far, in numpy.
    """

    __slots__ = ("_chunks", "_counts", "now")

    def __init__(self) -> None:
        self.now = 0
        self._counts = np.zeros(2 * CHUNK, np.int64)
        self._chunks = np.zeros(2, np.int64)

    def add(self) -> int:
        """A value is used now. Returns the time, which is its own."""
        if self.now == self._counts.size:
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._chunks = np.concatenate([self._chunks, np.zeros_like(self._chunks)])
        time = self.now
        self.now += 1
        self._counts[time] = 1
        self._chunks[time // CHUNK] += 1
        return time

    def remove(self, time: int) -> None:
        """The value last used at `time` is gone, or used anew."""
        self._counts[time] = 0
        self._chunks[time // CHUNK] -= 1

    def compact(self) -> NDArray[np.int64]:
        """Number the times anew, without gaps. Returns the new ones by the old ones. Cost: O(times so far)."""
        kept = self._counts[: self.now]
        renumbered = np.cumsum(kept) - 1
        self.now = int(kept.sum())
        size = max(2, -(-self.now // CHUNK))
        self._counts = np.zeros(size * CHUNK, np.int64)
        self._counts[: self.now] = 1
        self._chunks = self._counts.reshape(size, CHUNK).sum(axis=1)
        return renumbered

    def above(self, time: int) -> int:
        """How many values were used after `time`."""
        chunk = time // CHUNK
        return int(self._counts[time + 1 : (chunk + 1) * CHUNK].sum() + self._chunks[chunk + 1 :].sum())
