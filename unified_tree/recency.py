"""Pieces of text as recency holds them: those that were used last, up to some number of tokens.

A visit's piece is held from when it comes until it is answered. Recency evicts what was used the longest time ago, the end of a
piece first, and visits are numbered as they come. So one number says which are held whole, and it never goes back.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

UNBOUNDED: Final = 1 << 62


class Recency:
    """Holds the last visits of sessions up to some number of tokens.

    Args:
        size: how many visits are remembered.

    Attributes:
        held: tokens of those that it holds whole.
    """

    __slots__ = ("_entered", "_first", "_left", "_room", "_size", "_tokens", "held")

    def __init__(self, size: int) -> None:
        self._size: i64 = size
        self._tokens = [0] * size
        self._entered: i64 = 0
        self._first: i64 = 0  # the oldest visit that is held whole
        self._left: i64 = 0  # what is left of the one before
        self._room: i64 = UNBOUNDED
        self.held: i64 = 0

    @property
    def is_bounded(self) -> bool:
        """Whether it is known for how many there is room."""
        return self._room < UNBOUNDED

    def has_room_for(self, tokens: i64) -> None:
        """There is room for so many tokens from now on. Cost: as `grew`."""
        self._room = tokens
        self._evict()

    def enter(self, tokens: i64) -> i64:
        """The next visit comes, with so many tokens; its number. Cost: as `grew`."""
        serial = self._entered
        self._entered += 1
        forgotten = serial - self._size
        if forgotten >= self._first:
            self.held -= i64(self._tokens[forgotten % self._size])
            self._first = forgotten + 1
        if forgotten >= self._first - 1:
            self._left = 0
        self._tokens[serial % self._size] = 0
        self.grew(serial, tokens)
        return serial

    def grew(self, serial: i64, tokens: i64) -> None:
        """A visit that nobody answered has so many tokens now; one that has lost its end does not grow. Cost: O(1), amortized
        over visits.
        """
        if serial >= self._first:
            slot = serial % self._size
            self.held += tokens - i64(self._tokens[slot])
            self._tokens[slot] = int(tokens)
            self._evict()

    def holds(self, serial: i64) -> i64:
        """How many tokens it holds of a visit. Cost: O(1)."""
        if serial >= self._first:
            return i64(self._tokens[serial % self._size])
        return self._left if serial == self._first - 1 else 0

    def answered(self, serial: i64) -> i64:
        """How many tokens it holds of a visit that is answered now; all, before it is known for how many there is room. Cost:
        O(1).
        """
        tokens = self.holds(serial)
        if serial >= self._first:
            self.held -= tokens
            self._tokens[serial % self._size] = 0
        return tokens

    def _evict(self) -> None:
        while self.held > self._room:
            self._left = self._tokens[self._first % self._size]
            self.held -= self._left
            self._first += 1
        self._left = min(self._left, self._room - self.held)
