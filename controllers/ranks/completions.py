"""Operations of one kind, finished in any order here, agreed on in the order they were begun."""

from __future__ import annotations

from operator import index

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.ranks.consensus import Finished
from unified_tree.errors import TicketError


class Completions:
    """One rank's count of one kind. Sets of operations are integers, bit i standing for operation base + i.

    Args:
        kind: its name.
        window: how many operations a message speaks of, a multiple of 8.
        furthest: how far a number may be ahead of the operations that all ranks finished.
    """

    def __init__(self, kind: str, window: int, furthest: int) -> None:
        self._kind = kind
        self._window = window
        self._furthest = furthest
        self._base = 0
        self._finished = 0
        self._failed = 0

    def finish(self, number: int, *, failed: bool) -> None:
        """Count an operation. Raises TicketError for a number that was counted before, or that is too far ahead."""
        position = index(number) - self._base
        if position >= self._furthest:
            raise TicketError(
                f"{self._kind} operation {number} is {position} beyond the last that all ranks finished: they are numbered "
                "from 0, as they were begun"
            )
        if position < 0 or self._finished >> position & 1:
            raise TicketError(f"{self._kind} operation {number} was counted as finished before")
        self._finished |= 1 << position
        self._failed |= bool(failed) << position

    def write(self, count: NDArray[np.void]) -> None:
        """Write into a message which operations after the agreed ones this rank has finished. Cost: O(window)."""
        mask = (1 << self._window) - 1
        size = self._window // 8
        count["finished"] = np.frombuffer((self._finished & mask).to_bytes(size, "little"), np.uint8)
        count["succeeded"] = np.frombuffer((~self._failed & mask).to_bytes(size, "little"), np.uint8)

    def read(self, count: NDArray[np.void]) -> Finished | None:
        """The operations that the reduced message reports as newly finished on all ranks; None if there are none. Cost:
        O(window).
        """
        finished = int.from_bytes(count["finished"].tobytes(), "little")
        new = (~finished & (finished + 1)).bit_length() - 1  # the run of ones from the lowest bit
        if not new:
            return None
        succeeded = int.from_bytes(count["succeeded"].tobytes(), "little")
        numbers = range(self._base, self._base + new)
        failed = frozenset(number for i, number in enumerate(numbers) if not succeeded >> i & 1)
        self._base += new
        self._finished >>= new
        self._failed >>= new
        return Finished(kind=self._kind, numbers=numbers, failed=failed)
