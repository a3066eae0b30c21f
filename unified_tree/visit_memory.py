"""What was learned of visits of one kind: which are answered, and after how long.

The share of visits with the same bin of a feature that were answered, beside that of all, gives the bin its weight; a visit's
weights add up to its odds (naive Bayes). Visits of about the same odds form a class. How long each visit of a class was idle,
and whether an answer ended that, gives the class a hazard by age (Kaplan and Meier, 1958), drawn towards that of all.

If room has a price, it pays to keep what a visit left up to some age: that for which the chance of an answer until then, less
the price of the time for which it is held until then, is greatest (the index of Gittins, 1979, for one arrival). A table has
that age for each class and price.
"""

from __future__ import annotations

from bisect import bisect_right
from math import log, log2
from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.visit import BINS, FEATURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unified_tree.visit import Visit


CLASSES: Final = 16
VISITS_A_CLASS: Final = 64
AGES: Final = 48
AGE_BOUNDS: Final = np.concatenate(([0.0], 2.0 ** (np.arange(1, AGES + 1) / 3)))
"""Ages at which a value may be given up, in visits: 0, then a third of an octave apart."""
COSTS: Final = 96
COST_STEP: Final = 0.25
"""The costs of keeping, in hits of what is kept a visit, are a quarter of an octave apart, from 1 down to 2**-24."""
LEAST_COST: Final = 2.0**-24
PATIENCE: Final = 2.0
"""A visit without an answer counts as one once it is older than the median answer so many times."""
LEAST_SHARE: Final = 0.001
BIN_PRIOR: Final = 10.0
HAZARD_PRIOR: Final = 30.0
"""Visits like all others that are counted with those of a bin, or of a class at an age."""


class VisitMemory:
    """The last visits of one kind.

    Args:
        size: how many are remembered.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._visits: list[Visit | None] = [None] * size
        self._entered = 0
        self._at: NDArray[np.int64] = np.zeros(size, np.int64)
        self._after: NDArray[np.int64] = np.full(size, -1, np.int64)
        self._bins: NDArray[np.int64] = np.zeros((size, FEATURES), np.int64)
        self._room: NDArray[np.int64] = np.zeros(size, np.int64)
        self._end: NDArray[np.int64] = np.zeros(size, np.int64)
        self._saves: NDArray[np.int64] = np.zeros(size, np.int64)
        self._weights = [[0.0] * BINS for _ in range(FEATURES)]
        self._cuts: list[float] = []
        self._keep: list[list[float]] = []

    def enter(self, visit: Visit) -> None:
        """Remember a new visit. Cost: O(1)."""
        visit.serial = self._entered
        slot = visit.serial % self._size
        self._entered += 1
        self._visits[slot] = visit
        self._after[slot] = -1
        self.judge(visit)

    @property
    def is_ready(self) -> bool:
        """Whether `keep_for` knows something."""
        return bool(self._keep)

    @property
    def last_serial(self) -> int:
        """The number of the newest visit; -1 for none."""
        return self._entered - 1

    def judge(self, visit: Visit) -> None:
        """What a visit is like has changed. Cost: O(1)."""
        odds = 0.0
        bins = visit.bins
        for feature in range(FEATURES):
            odds += self._weights[feature][bins[feature]]
        visit.row = bisect_right(self._cuts, odds)
        slot = visit.serial % self._size
        if self._visits[slot] is visit:
            self._at[slot] = visit.at
            self._bins[slot] = bins
            self._room[slot] = visit.room
            self._end[slot] = visit.end
            self._saves[slot] = len(visit.saves)

    def answered(self, visit: Visit, age: int) -> None:
        """A visit was answered. Cost: O(1)."""
        slot = visit.serial % self._size
        if self._visits[slot] is visit:
            self._after[slot] = age

    def keep_for(self, row: int, cost: float) -> float:
        """For how many visits to keep what a visit of a class left, at a price in hits of it a visit. Cost: O(1)."""
        of_row = self._keep[min(row, len(self._keep) - 1)]
        place = int(-log2(max(cost, LEAST_COST)) / COST_STEP + 0.5)
        return of_row[min(COSTS - 1, max(0, place))]

    def revise(self, now: int) -> Held:
        """Learn anew from what is remembered. Cost: a few passes in numpy over `size` numbers."""
        count = min(self._entered, self._size)
        after = self._after[:count]
        is_back = after >= 0
        age = np.where(is_back, after, now - self._at[:count])
        odds = self._weigh(after, age, self._bins[:count])
        classes = min(CLASSES, max(1, count // VISITS_A_CLASS))
        cuts = np.quantile(odds, np.arange(1, classes) / classes) if count else np.zeros(0)
        rows = np.searchsorted(cuts, odds, "right")
        cell = rows * AGES + np.minimum(AGES - 1, np.searchsorted(AGE_BOUNDS, age, "right") - 1)
        came = np.bincount(cell[is_back], minlength=classes * AGES).reshape(classes, AGES)
        there = np.bincount(cell, minlength=classes * AGES).reshape(classes, AGES)[:, ::-1].cumsum(1)[:, ::-1]
        of_all = came.sum(0) / np.maximum(there.sum(0), 1)
        ratio = (came.sum(1) + 1) / ((there * of_all).sum(1) + 1)
        hazard = np.minimum(1.0, (came + HAZARD_PRIOR * ratio[:, None] * of_all) / (there + HAZARD_PRIOR))
        left = np.concatenate([np.ones((classes, 1)), np.cumprod(1 - hazard, 1)], 1)
        held = np.concatenate([np.zeros((classes, 1)), np.cumsum((left[:, :-1] + left[:, 1:]) / 2 * np.diff(AGE_BOUNDS), 1)], 1)
        costs = 2.0 ** (-COST_STEP * np.arange(COSTS))
        best = (1 - left[:, None, :] - costs[None, :, None] * held[:, None, :]).argmax(2)
        self._cuts = cuts.tolist()
        self._keep = AGE_BOUNDS[best].tolist()
        return Held(rows, np.take_along_axis(held, best, 1), self._room[:count], self._end[:count], self._saves[:count])

    def _weigh(self, after: NDArray[np.int64], age: NDArray[np.int64], bins: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of each bin, and each visit's odds.

        A visit that waits for longer than answers usually take counts as not answered.
        """
        is_back = after >= 0
        usual = PATIENCE * float(np.median(after[is_back])) if is_back.any() else 0.0
        is_known = is_back | (age > usual)
        share = (is_back.sum() + 1) / (is_known.sum() + 2)
        base = log(share / (1 - share))
        odds = np.zeros(len(after))
        for feature in range(FEATURES):
            of = bins[:, feature]
            seen = np.bincount(of[is_known], minlength=BINS)
            answered = np.bincount(of[is_back], minlength=BINS)
            part = np.clip((answered + BIN_PRIOR * share) / (seen + BIN_PRIOR), LEAST_SHARE, 1 - LEAST_SHARE)
            weights = np.log(part / (1 - part)) - base
            odds += weights[of]
            self._weights[feature] = weights.tolist()
        return odds


class Held:
    """For how long what each remembered visit left is held, at any cost.

    Attributes:
        count: how many visits.
        room, end, saves: of each visit, shape [count].
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        held: NDArray[np.float64],
        room: NDArray[np.int64],
        end: NDArray[np.int64],
        saves: NDArray[np.int64],
    ) -> None:
        self._rows = rows
        self._held = held
        self.count = len(rows)
        self.room = np.maximum(1, room)
        self.end = end
        self.saves = saves

    def times(self, costs: NDArray[np.float64], factors: Sequence[float]) -> list[NDArray[np.float64]]:
        """The mean time for which each is held, in visits, shape [count]; at these costs by each of these factors."""
        places = (-np.log2(np.maximum(costs, LEAST_COST)) / COST_STEP + 0.5).astype(np.int64)
        shifts = [int(log2(factor) / COST_STEP + 0.5) for factor in factors]
        return [self._held[self._rows, np.clip(places - shift, 0, COSTS - 1)] for shift in shifts]
