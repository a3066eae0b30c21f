"""Operations of one kind, finished in any order here, agreed on in the order they were begun."""

from __future__ import annotations

from operator import index
from typing import Any

from unified_tree.controllers.ranks.consensus import Finished
from unified_tree.terms.errors import TicketError
from unified_tree.terms.results import record

NONE: frozenset[int] = frozenset()


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
        self._said: bytes | None = None

    def finish(self, number: Any, *, failed: Any) -> None:  # any integer, numpy's too, in compiled code
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
        self._said = None

    def count(self) -> bytes:
        """What the next message says: which operations after the agreed ones this rank has finished, and which of them did not
        fail. Cost: O(window) where that has changed.
        """
        if self._said is None:
            mask = (1 << self._window) - 1
            size = self._window // 8
            self._said = (self._finished & mask).to_bytes(size, "little") + (~self._failed & mask).to_bytes(size, "little")
        return self._said

    def read(self, count: bytes) -> Finished | None:
        """The operations that the reduced message reports as newly finished on all ranks; None if there are none. Cost:
        O(window), or O(1) if there are none.
        """
        if not count[0] & 1:
            return None
        size = self._window // 8
        finished = int.from_bytes(count[:size], "little")
        new = (~finished & (finished + 1)).bit_length() - 1  # the run of ones from the lowest bit
        succeeded = int.from_bytes(count[size:], "little")
        numbers = range(self._base, self._base + new)
        has_failed = ~succeeded & ((1 << new) - 1)
        failed = frozenset([number for i, number in enumerate(numbers) if has_failed >> i & 1]) if has_failed else NONE
        self._base += new
        self._finished >>= new
        self._failed >>= new
        self._said = None
        return record(Finished, (self._kind, numbers, failed))
