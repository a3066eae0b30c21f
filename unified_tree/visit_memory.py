"""What was learned of visits of one kind: which are answered, and after how long.

The share of visits with the same bin of a feature that were answered, beside that of all, gives the bin its weight; a visit's
weights add up to its odds (naive Bayes). Visits of about the same odds form a class. How long each visit was idle, and whether
an answer ended that, gives a hazard by age (Kaplan and Meier, 1958); a class has that of all, so many times as its visits are
answered more often than the others at the same ages: its pace (proportional hazards, Cox, 1972).

What a visit left is worth the chance of an answer up to some age, for the time for which it is held until then, at the age for
which that is most (the index of Gittins, 1979, for one arrival). A table has it for each pace and age.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from math import exp2, log
from typing import TYPE_CHECKING, Final

import numpy as np
from mypy_extensions import i64

from unified_tree.visit import BINS, FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.visit import Visit


CLASSES: Final = 16
VISITS_A_CLASS: Final = 64
AGE_BOUNDS: Final = np.unique(np.rint(2.0 ** (np.arange(-6, 49) / 3)))
"""Ages are told apart in visits up to 6, then in thirds of octaves: 0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, …, 65,536."""
AGE_LIMITS: Final[list[float]] = AGE_BOUNDS[1:].tolist()
AGE_WIDTHS: Final[list[float]] = np.diff(AGE_BOUNDS).tolist()
AGES: Final = len(AGE_LIMITS)
YOUNG: Final = 4096
AGE_BINS: Final = bytes(np.searchsorted(AGE_BOUNDS[1:], np.arange(YOUNG), "right").tolist())
"""The bin of each age up to there."""
PACES: Final = 21
USUAL_PACE: Final = 10
PACES_AN_OCTAVE: Final = 2
PATIENCE: Final = 2.0
"""A visit without an answer counts as one once it is older than the median answer so many times."""
LEAST_SHARE: Final = 0.001
BIN_PRIOR: Final = 10.0
"""Visits like all others that are counted with those of a bin."""


class VisitMemory:
    """The last visits of one kind.

    Args:
        size: how many are remembered.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._visits: list[Visit | None] = [None] * size
        self._entered = 0
        self._at = array("q", bytes(8 * size))
        self._after = array("q", bytes(8 * size))
        self._bins = bytearray(FEATURES * size)
        self._weights = [[0.0] * BINS for _ in range(FEATURES)]
        self._cuts: list[float] = []
        self._paces: list[int] = [USUAL_PACE]
        self._worth: list[list[float]] = []

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
        """Whether `worth` knows something."""
        return bool(self._worth)

    @property
    def last_serial(self) -> int:
        """The number of the newest visit; -1 for none."""
        return self._entered - 1

    def judge(self, visit: Visit) -> None:
        """What a visit is like has changed. Cost: O(1)."""
        slot = visit.serial % self._size
        if self._visits[slot] is visit:
            self._at[slot] = visit.at
            self._bins[FEATURES * slot : FEATURES * (slot + 1)] = visit.bins

    def answered(self, visit: Visit, age: int) -> None:
        """A visit was answered. Cost: O(1)."""
        slot = visit.serial % self._size
        if self._visits[slot] is visit:
            self._after[slot] = age

    def pace(self, visit: Visit) -> int:
        """How much sooner than others visits like this one are answered; `USUAL_PACE` for no sooner. Cost: O(1)."""
        odds = 0.0
        for weights, at in zip(self._weights, visit.bins, strict=True):
            odds += weights[at]
        return self._paces[bisect_right(self._cuts, odds)]

    def worth(self, pace: i64, age: i64) -> float:
        """What a hit of what a visit left is worth after so many visits of others, in hits a visit. Cost: O(1)."""
        at: i64 = AGE_BINS[age] if age < YOUNG else min(AGES - 1, bisect_right(AGE_LIMITS, age))
        return self._worth[pace][at]

    def learn(self, now: int) -> Iterator[None]:
        """Learn anew from what is remembered, in slices: one at each step. Cost: a slice is a few passes in numpy over `size`
        numbers.
        """
        count = min(self._entered, self._size)
        after, at = np.frombuffer(self._after, np.int64)[:count].copy(), np.frombuffer(self._at, np.int64)[:count]
        bins = np.frombuffer(self._bins, np.uint8).reshape(-1, FEATURES)[:count].T.astype(np.int64)
        is_back = after >= 0
        age = np.where(is_back, after, now - at)
        yield
        # A visit that waits for longer than answers usually take counts as not answered.
        usual = PATIENCE * float(np.median(after[is_back])) if is_back.any() else 0.0
        is_known = is_back | (age > usual)
        share = (is_back.sum() + 1) / (is_known.sum() + 2)
        odds = np.zeros(count)
        all_weights: list[list[float]] = []
        for of in bins:
            yield
            seen = np.bincount(of[is_known], minlength=BINS)
            answered = np.bincount(of[is_back], minlength=BINS)
            part = np.clip((answered + BIN_PRIOR * share) / (seen + BIN_PRIOR), LEAST_SHARE, 1 - LEAST_SHARE)
            weights = np.log(part / (1 - part)) - log(share / (1 - share))
            odds += weights[of]
            all_weights.append(weights.tolist())
        yield
        classes = min(CLASSES, max(1, count // VISITS_A_CLASS))
        cuts = np.sort(odds)[[count * i // classes for i in range(1, classes)]]
        yield
        cell = np.searchsorted(cuts, odds, "right") * AGES + np.minimum(AGES - 1, np.searchsorted(AGE_BOUNDS[1:], age, "right"))
        yield
        came = np.bincount(cell[is_back], minlength=classes * AGES).reshape(classes, AGES)
        there = np.bincount(cell, minlength=classes * AGES).reshape(classes, AGES)[:, ::-1].cumsum(1)[:, ::-1]
        hazard = came.sum(0) / np.maximum(there.sum(0), 1)
        ratio = (came.sum(1) + 1) / ((there * hazard).sum(1) + 1)
        paces = np.clip(np.rint(PACES_AN_OCTAVE * np.log2(ratio)) + USUAL_PACE, 0, PACES - 1)
        chances: list[float] = hazard.tolist()
        worth: list[list[float]] = []
        for pace in range(PACES):
            yield
            worth.append(_worth(chances, exp2((pace - USUAL_PACE) / PACES_AN_OCTAVE)))
        self._weights, self._cuts, self._paces, self._worth = all_weights, cuts.tolist(), paces.astype(np.int64).tolist(), worth


def _worth(hazard: list[float], times: float) -> list[float]:
    """The index of Gittins at each age, from so many times the chances of an answer at each; both of length AGES.

    At each age it is the slope to the next corner of the least concave function above the answered share, as a function of the
    time for which visits were held until then. Cost: O(AGES).
    """
    answered, held = [0.0], [0.0]
    for chance, width in zip(hazard, AGE_WIDTHS, strict=True):
        left = 1.0 - answered[-1]
        here = left * min(1.0, chance * times)
        answered.append(answered[-1] + here)
        held.append(held[-1] + (left - here / 2) * width)
    corners = [AGES]
    worth = [0.0] * AGES
    for age in range(AGES - 1, -1, -1):
        while True:
            time = held[corners[-1]] - held[age]
            worth[age] = (answered[corners[-1]] - answered[age]) / time if time > 0 else 0.0
            if len(corners) == 1 or worth[age] > worth[corners[-1]]:
                break
            corners.pop()
        corners.append(age)
    return worth
