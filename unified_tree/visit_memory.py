"""The last visits of one kind, and what was learned of them: how soon visits like one are answered, and what one is worth.

See `visit_fit` for what is learned. It is looked up by pace and age.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np
from mypy_extensions import i64

from unified_tree.visit import BIN_BITS, BINS, FEATURES
from unified_tree.visit_fit import (
    AGE_BOUNDS,
    AGES,
    ALIKE,
    BIN_MASK,
    BOUNDARY_SHARES,
    PACES,
    USUAL_PACE,
    VisitFit,
    ages_of,
    worth_by_age,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unified_tree.visit import Visit


JUDGED: Final = Struct("=3q")
"""What is remembered of a visit, in one call."""
AGE_LIMITS: Final[list[float]] = AGE_BOUNDS[1:].tolist()
JUDGEMENTS: Final = 2
"""About so many judgements of whether it pays count for their mean."""
RISE_PAYS: Final = 1.02
"""What was used last may be worth less than what was used before, where so many times as many hits are expected of that."""
FEWER: Final = 0.005
"""By so large a share fewer tokens may be hit than recency would hit; beyond that what was learned is not trusted, until it is
half of that."""
LOOKED: Final = 8
"""That is looked at each time that so many known texts were used."""
COUNTED: Final = 512
"""What was hit before so many of these counts half."""
DEEP: Final = 1.4
"""So many times as much must a text be worth before and after an age for which it goes from the middle of its queue."""
YOUNG: Final = 4096
AGE_BINS: Final = bytes(np.searchsorted(AGE_BOUNDS[1:], np.arange(YOUNG), "right").tolist())
"""The bin of each age up to there."""


class VisitMemory:
    """The last visits of one kind.

    Args:
        size: how many are remembered.

    Attributes:
        gain: how many times as many tokens would be hit if classes are told apart as if not; a mean of the last judgements.
        foresight: by which factor, as a logarithm, an answer is likelier if classes are told apart; as judged last.
        by_length: likewise if longer texts are worth more, for each of BOUNDARY_SHARES.
        judged: how many visits these figures come from.
        mean_tokens: the mean of `Visit.room`, as learned last.
        is_trusted: whether about as many tokens were hit lately as recency would have hit.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._visits: list[Visit | None] = [None] * size
        self._entered = 0
        self._after = array("q", bytes(8 * size))
        self._judged = bytearray(JUDGED.size * size)  # when each was, what it was like, and how many tokens it had
        self._epoch: i64 = 0
        self._weights = [[0.0] * BINS for _ in range(FEATURES)]
        self._cuts: list[float] = []
        self._paces: list[int] = [USUAL_PACE]
        self._alike: list[float] = []
        self._usual: list[float] = []
        self._forget()
        self.gain = 1.0
        self.by_length = [1.0] * len(BOUNDARY_SHARES)
        self.judged = 1
        self.foresight = 0.0
        self.mean_tokens = 1.0
        self._may_rise = True
        self.is_trusted = True
        self._compared = 0
        self._hit = self._by_recency = 0.0

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
        return bool(self._alike)

    def judge(self, visit: Visit) -> None:
        """What a visit is like has changed. Cost: O(1)."""
        slot = visit.serial % self._size
        if self._visits[slot] is visit:
            JUDGED.pack_into(self._judged, JUDGED.size * slot, visit.at, visit.features, visit.room)

    def answered(self, visit: Visit, age: int) -> None:
        """A visit was answered. Cost: O(1)."""
        slot = visit.serial % self._size
        if self._visits[slot] is visit:
            self._after[slot] = age

    def compare(self, hit: i64, by_recency: i64) -> None:
        """Of a known text that is used so many tokens were there, and so many of these would be by recency. Cost: O(1)."""
        self._hit += float(hit)
        self._by_recency += float(by_recency)
        self._compared += 1
        if self._compared % LOOKED == 0 and self.is_ready:
            fewer = FEWER if self.is_trusted else FEWER / 2
            self.is_trusted = self._hit >= (1.0 - fewer) * self._by_recency
        if self._compared % COUNTED == 0:
            self._hit /= 2
            self._by_recency /= 2

    def missed(self, tokens: i64) -> None:
        """So many tokens of such a text come back that would have been there by recency. Cost: O(1)."""
        self._by_recency += float(tokens)

    def pace(self, visit: Visit) -> i64:
        """How much sooner than others visits like this one are answered; `USUAL_PACE` for no sooner. Cost: O(1)."""
        if visit.judged != self._epoch:
            features: i64 = visit.features
            odds = 0.0
            for weights in self._weights:
                odds += weights[features & BIN_MASK]
                features >>= BIN_BITS
            of: i64 = 0
            for cut in self._cuts:
                if odds < cut:
                    break
                of += 1
            visit.pace = self._paces[of]
            visit.judged = self._epoch
        return visit.pace

    def worth(self, pace: i64, age: i64) -> float:
        """What a hit of what a visit left is worth after so many ticks, in hits a tick.

        Cost: O(1); O(AGES) once for each pace since it learned last.
        """
        of_pace = self._worth[pace]
        if of_pace is None:
            of_pace = worth_by_age(self._alike, USUAL_PACE) if pace == ALIKE else worth_by_age(self._usual, pace)
            if not self._may_rise:
                of_pace = list(accumulate(of_pace, min))
            self._worth[pace] = of_pace
        at: i64 = AGE_BINS[age] if age < YOUNG else min(AGES - 1, bisect_right(AGE_LIMITS, age))
        return of_pace[at]

    def lows(self, pace: i64) -> list[int]:
        """The ages at which it is worth less than shortly before and after, those at which least first; mostly none.

        Cost: O(1); O(AGES) once for each pace since it learned last.
        """
        lows = self._lows[pace]
        if lows is None:
            self.worth(pace, 0)
            of_pace = self._worth[pace]
            assert of_pace is not None
            lows = self._lows[pace] = lows_of(of_pace)
        return lows

    def learn(self, now: int, held_tokens: float, boundaries: float) -> Iterator[None]:
        """Learn anew from what is remembered, in slices: one at each step. Cost of a slice: as `VisitFit.steps`.

        Whether it pays is judged by what the even visits teach of the odd ones.

        Args:
            now: as of ages.
            held_tokens: for how many tokens of paths there is memory; 0 for no such judgement.
            boundaries: for how many boundaries there is; 0 if these need no room of their own.
        """
        count = min(self._entered, self._size)
        if count == 0:
            return
        after = np.frombuffer(self._after, np.int64)[:count].copy()
        at, features, tokens = np.frombuffer(self._judged, np.int64).reshape(-1, 3)[:count].T.copy()
        yield
        is_back = after >= 0
        age = np.where(is_back, after, now - at)
        ages = ages_of(age)
        fit = VisitFit(features, is_back, age, ages)
        yield from fit.steps()
        time = float(now - at.min()) / 2
        if held_tokens * time > 0 and count > 1:
            yield
            half = VisitFit(features[::2], is_back[::2], age[::2], ages[::2])
            yield from half.steps()
            yield
            odd = slice(1, None, 2)
            yield from half.judge(
                features[odd], is_back[odd], age[odd], ages[odd], tokens[odd], held_tokens * time, boundaries * time
            )
            self.gain += (half.gain - self.gain) / JUDGEMENTS
            by_length = half.by_length or [1.0] * len(self.by_length)
            self.by_length = [mean + (last - mean) / JUDGEMENTS for mean, last in zip(self.by_length, by_length, strict=True)]
            self.judged = count // 2
            self.foresight = half.foresight
            self._may_rise = half.rise >= RISE_PAYS
        self.mean_tokens = max(1.0, float(tokens.mean()))
        self._weights, self._cuts, self._paces = fit.weights, fit.cuts, fit.paces
        self._alike, self._usual = fit.alike, fit.usual
        self._forget()
        self._epoch += 1

    def _forget(self) -> None:
        """What a visit is worth is to be settled anew: by pace, and for all alike."""
        self._worth: list[list[float] | None] = [None] * (PACES + 1)
        self._lows: list[list[int] | None] = [None] * (PACES + 1)


def lows_of(worth: list[float]) -> list[int]:
    """The ages, each the last one of its bin, at which something is worth less by 2/7 than at some age before, and at some
    age after, and less than around; those at which least first. From what it is worth in each bin.

    What falls and rises by less may be the chance of few answers, and a victim in the middle of a queue costs more hits then
    than it brings.
    """
    found: list[tuple[float, int]] = []
    before = list(accumulate(worth, max))
    after = list(accumulate(reversed(worth), max))[::-1]
    is_falling = False
    for i in range(1, len(worth)):
        low = worth[i - 1]
        if worth[i] > low and is_falling and DEEP * low <= min(before[i], after[i]):
            found.append((low, int(AGE_LIMITS[i - 1]) - 1))
        if worth[i] != low:
            is_falling = worth[i] < low
    found.sort()
    return [age for _, age in found]
