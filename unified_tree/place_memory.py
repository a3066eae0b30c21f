"""What is learned of places where sessions fork off: after how many of its own gaps such a place is used again.

A place that many sessions share is used every few ticks, another one once in thousands. So ages are counted in gaps: the moving
mean of the place's own. Before anything is known a place that was not used for some time is used within as long again, and its
gap besides, as likely as not; what was seen of the last uses outweighs that.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
from mypy_extensions import i64

from unified_tree.visit_fit import (
    AGE_BOUNDS,
    AGES,
    PACES,
    PACES_AN_OCTAVE,
    REACHED,
    USUAL_PACE,
    ages_of,
    worth_by_age,
)
from unified_tree.visit_memory import AGE_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.visit import Visit

A_GAP: Final = 64.0
"""A gap has so many units of age."""
GAPS: Final[list[float]] = [2.0 ** (i / PACES_AN_OCTAVE) for i in range(PACES)]
"""Places are told apart by gaps of so many ticks."""
AT_FIRST: Final = np.diff(AGE_BOUNDS) / (A_GAP + AGE_BOUNDS[1:])
"""The chance of a use at each age, before anything is known."""


class PlaceMemory:
    """The last uses of such places.

    Args:
        size: how many are remembered.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._visits: list[Visit | None] = [None] * size
        self._entered = 0
        self._at, self._after = array("q", bytes(8 * size)), array("q", bytes(8 * size))
        self._gap = array("d", bytes(8 * size))
        self._worth = worth_of(AT_FIRST.tolist())

    def enter(self, visit: Visit) -> None:
        """Remember a new use. Cost: O(1)."""
        visit.serial = self._entered
        slot = visit.serial % self._size
        self._entered += 1
        self._visits[slot] = visit
        self._at[slot], self._after[slot] = visit.at, -1
        self._gap[slot] = max(1.0, visit.mean_gap)

    def answered(self, visit: Visit, age: int) -> None:
        """The place was used again. Cost: O(1)."""
        slot = visit.serial % self._size
        if self._visits[slot] is visit:
            self._after[slot] = age

    def learn(self, now: int) -> Iterator[None]:
        """Learn anew from what is remembered, in slices: one at each step. Cost of a slice: a few passes in numpy over it."""
        count = min(self._entered, self._size)
        after, at = (np.frombuffer(kept, np.int64)[:count].copy() for kept in (self._after, self._at))
        gap = np.frombuffer(self._gap)[:count].copy()
        yield
        is_back = after >= 0
        ages = ages_of((np.where(is_back, after, now - at) * (A_GAP / gap)).astype(np.int64))
        yield
        came = np.bincount(ages[is_back], minlength=AGES)
        there = np.bincount(ages, minlength=AGES)[::-1].cumsum()[::-1]
        self._worth = worth_of(((came + REACHED * AT_FIRST) / (there + REACHED)).tolist())

    def worth(self, pace: i64, age: i64) -> float:
        """What a hit at a place of some gap is worth after so many ticks, in hits a tick. Cost: O(log AGES)."""
        units = A_GAP / GAPS[pace]
        return self._worth[min(AGES - 1, bisect_right(AGE_LIMITS, float(age) * units))] * units


def worth_of(chances: list[float]) -> list[float]:
    """What a place is worth at each age in gaps, in hits a unit of age; it never rises."""
    return list(accumulate(worth_by_age(chances, USUAL_PACE), min))
