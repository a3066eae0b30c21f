"""The recency order of a model's windows or states; the distance of a value is how many others are more recent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 512
WHOLE = 64
"""The weight of a value that shares its pages with no other."""


class ValueOrder:
    """Weights by time, and their sums from any time on.

    >>> order = ValueOrder()
    >>> old = order.add()
    >>> new = order.add(WHOLE // 2)
    >>> order.above(old), order.above(new)
    (32, 0)
    >>> order.remove(new)
    >>> order.above(old)
    0

    Cost: O(1) to add and remove; a distance is a sum over n / 512 chunks, with n the times so far, in numpy.
    """

    __slots__ = ("_chunks", "_weights", "now")

    def __init__(self) -> None:
        self.now = 0
        self._weights = np.zeros(2 * CHUNK, np.int64)
        self._chunks = np.zeros(2, np.int64)

    def add(self, weight: int = WHOLE) -> int:
        """A value is used now. Returns the time, which is its own.

        Args:
            weight: 64 for a whole value; a window that shares pages with the one before it takes a part of that.
        """
        if self.now == self._weights.size:
            self._weights = np.concatenate([self._weights, np.zeros_like(self._weights)])
            self._chunks = np.concatenate([self._chunks, np.zeros_like(self._chunks)])
        time = self.now
        self.now += 1
        self._weights[time] = weight
        self._chunks[time // CHUNK] += weight
        return time

    def remove(self, time: int) -> None:
        """The value last used at `time` is gone, or used anew."""
        self._chunks[time // CHUNK] -= self._weights[time]
        self._weights[time] = 0

    def compact(self) -> NDArray[np.int64]:
        """Number the times anew, without gaps. Returns the new ones by the old ones. Cost: O(times so far)."""
        weights = self._weights[: self.now]
        renumbered = np.cumsum(weights > 0) - 1
        kept = weights[weights > 0]
        self.now = kept.size
        size = max(2, -(-self.now // CHUNK))
        self._weights = np.zeros(size * CHUNK, np.int64)
        self._weights[: self.now] = kept
        self._chunks = self._weights.reshape(size, CHUNK).sum(axis=1)
        return renumbered

    def above(self, time: int) -> int:
        """What the values weigh that were used after `time`."""
        chunk = time // CHUNK
        return int(self._weights[time + 1 : (chunk + 1) * CHUNK].sum() + self._chunks[chunk + 1 :].sum())
