"""What is learned of visits: how the odds of an answer follow from what a visit is like, and the chance of one at each age.

The share of visits with the same bin of a feature that were answered, beside that of all, gives the bin its weight; a visit's
weights add up to its odds (naive Bayes). Visits of about the same odds form a class. How long each visit was idle, and whether
an answer ended that, gives a hazard by age (Kaplan and Meier, 1958); a class has that of all, so many times as its visits are
answered more often than the others at the same ages: its pace (proportional hazards, Cox, 1972). The old ones that are left are
mostly the slow ones, so what is usual at an age is told from how many were left of each pace (Breslow, 1972).

What a visit left is worth the chance of an answer up to some age, for the time for which it is held until then, at the age for
which that is most (the index of Gittins, 1979, for one arrival).
"""

from __future__ import annotations

from math import exp2, inf, log
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from unified_tree.visit import BIN_BITS, BINS, FEATURES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray


CLASSES: Final = 48
VISITS_A_CLASS: Final = 64
AGE_BOUNDS: Final = np.unique(np.rint(2.0 ** (np.arange(-6, 58) / 3)))
"""Ages are told apart in ticks up to 6, then in thirds of octaves: 0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, …, 524,288."""
AGE_WIDTHS: Final[list[float]] = np.diff(AGE_BOUNDS).tolist()
AGES: Final = len(AGE_WIDTHS)
INNER_BOUNDS: Final = AGE_BOUNDS[1:-1].astype(np.int32)
OLDEST: Final = int(AGE_BOUNDS[-1])
BIN_MASK: Final = (1 << BIN_BITS) - 1
PACES: Final = 21
USUAL_PACE: Final = 10
PACES_AN_OCTAVE: Final = 2
ALIKE: Final = PACES
"""In place of a pace: of visits that are not told apart."""
PATIENCE: Final = 2.0
"""A visit without an answer counts as one once it is older than the median answer so many times."""
LEAST_SHARE: Final = 0.001
BIN_PRIOR: Final = 10.0
"""Visits like all others that are counted with those of a bin."""
LENGTHS: Final = 16
SHORTEST: Final = 5
LENGTH_SIZES: Final = 1.5 * 2.0 ** np.arange(SHORTEST, SHORTEST + LENGTHS)
"""Texts are told apart by length in octaves of so many tokens about."""
BOUNDARY_SHARES: Final[list[float]] = [0.25, 0.5, 0.75, 1.0]
"""Of what all memory is worth, boundaries may have such a share."""
PRICES: Final = 48
"""So many prices are tried, and what lies between is interpolated."""
REACHED: Final = 8
"""An age that so many visits reached is known."""
STILL_DUE: Final = 0.5
"""Where it is not, an answer is as likely as this share of what it is at the age before: one may be a little late."""
DOUBTED_ANSWERS: Final = 10.0
"""So many answers of the usual size are added to what any order would hit: few answers say little."""


class VisitFit:
    """Learns from these visits.

    Args:
        features: of each visit, int64, shape [visits].
        is_back: whether it was answered.
        age: when that was, or how long it waits; ticks.
        ages: the bin of that (`ages_of`).

    Attributes:
        weights: of each bin, shape [FEATURES][BINS].
        cuts: the odds between the classes, ascending.
        paces: of the classes, in steps of which PACES_AN_OCTAVE double it, from USUAL_PACE.
        alike: the chance of an answer at each age, shape [AGES]; usual: that of a visit of USUAL_PACE, if they are told apart.
        gain, foresight, rise: as judged last.
        by_length: likewise, for each of BOUNDARY_SHARES; empty if boundaries are not scarce.
    """

    def __init__(
        self, features: NDArray[np.int64], is_back: NDArray[np.bool_], age: NDArray[np.int64], ages: NDArray[np.int64]
    ) -> None:
        self._features = features
        self._is_back = is_back
        self._age = age
        self._ages = ages
        self.weights: list[list[float]] = []
        self.cuts: list[float] = []
        self.paces: list[int] = []
        self.alike: list[float] = []
        self.usual: list[float] = []
        self.gain = 1.0
        self.foresight = 0.0
        self.rise = inf
        self.by_length: list[float] = []

    def steps(self) -> Iterator[None]:
        """All that is to be done, in slices. Cost: a slice is a few passes in numpy over the visits."""
        is_back, age, count = self._is_back, self._age, len(self._age)
        # A visit that waits for longer than answers usually take counts as not answered.
        answers = age[is_back]
        yield
        usual = PATIENCE * float(np.median(answers)) if answers.size else 0.0
        yield
        is_known = is_back | (age > usual)
        known, back = self._features[is_known], self._features[is_back]
        share = (is_back.sum() + 1) / (is_known.sum() + 2)
        for i in range(FEATURES):
            yield
            seen = np.bincount(bins_of(known, i), minlength=BINS)
            answered = np.bincount(bins_of(back, i), minlength=BINS)
            part = np.clip((answered + BIN_PRIOR * share) / (seen + BIN_PRIOR), LEAST_SHARE, 1 - LEAST_SHARE)
            self.weights.append((np.log(part / (1 - part)) - log(share / (1 - share))).tolist())
        yield
        odds = self._odds(self._features)
        yield
        classes = min(CLASSES, max(1, count // VISITS_A_CLASS))
        self.cuts = np.sort(odds)[[count * i // classes for i in range(1, classes)]].tolist()
        yield
        cell = reached(odds, np.array(self.cuts))
        yield
        cell = cell * AGES + self._ages
        came, there = yield from came_and_there(cell, is_back, classes)
        # What still waits at an age says nothing of its pace there: the answers of a whole class may be about to come.
        passed = there - np.bincount(cell[~is_back], minlength=there.size).reshape(there.shape)
        yield
        hazard = came.sum(0) / np.maximum(passed.sum(0), 1)
        ratio = (came.sum(1) + 1) / ((passed * hazard).sum(1) + 1)
        paces = np.clip(np.rint(PACES_AN_OCTAVE * np.log2(ratio)) + USUAL_PACE, 0, PACES - 1)
        self.paces = paces.astype(np.int64).tolist()
        yield
        self.alike = chances_by_age(came.sum(0).tolist(), there.sum(0).tolist())
        yield
        left = np.exp2((np.array(self.paces) - USUAL_PACE) / PACES_AN_OCTAVE) @ there
        self.usual = chances_by_age(came.sum(0).tolist(), left.tolist())

    def _odds(self, features: NDArray[np.int64]) -> NDArray[np.float64]:
        odds = np.zeros(len(features))
        for i, weights in enumerate(self.weights):
            odds += np.array(weights)[bins_of(features, i)]
        return odds

    def _foresee(self, cell: NDArray[np.int64], is_back: NDArray[np.bool_], times: NDArray[np.float64]) -> Iterator[None]:
        """Settle the `foresight`, in slices: by which factor (as a logarithm) an answer of other visits is likelier if their
        classes are told apart than if they are not; what did not happen counts, too.

        Args:
            cell: of each visit its pace, by place, and age as one number.
            times: how many times as often as the usual one is answered, by pace.
        """
        came, there = yield from came_and_there(cell, is_back, len(times))
        usual, alike = np.array(self.usual), np.array(self.alike)
        likelier = np.log(np.divide(usual, alike, out=np.ones(AGES), where=np.minimum(usual, alike) > 0))
        yield
        answers = float((came * (np.log(times)[:, np.newaxis] + likelier)).sum())
        due = float(times @ (there @ usual) - there.sum(0) @ alike)
        self.foresight = (answers - due) / max(1, int(came.sum()))

    def judge(
        self,
        features: NDArray[np.int64],
        is_back: NDArray[np.bool_],
        age: NDArray[np.int64],
        ages: NDArray[np.int64],
        tokens: NDArray[np.int64],
        memory: float,
        boundaries: float,
    ) -> Iterator[None]:
        """Settle, in slices, the `foresight`; the `gain`: how many times as many tokens of other visits are hit if these
        classes are told apart as if they are not; the `rise`: how many times as many these are as if all are kept up to one
        age, so that what was used last never goes first; and `by_length`: how many times as many if all are alike, but worth
        the more the longer they are.

        A text is kept while its worth is above some price, which the memory sets: the text times the time for which it is held
        (the working set, Denning, 1968). What is answered until then is hit. Where each holds a boundary besides, these must
        fit as well, and whichever runs short sets the price.

        Args:
            features, is_back, age, ages: of the others.
            tokens: of their texts.
            memory: what can be held of texts: tokens times ticks.
            boundaries: of boundaries: their number times ticks; 0 if they need no room of their own.

        Cost of a slice: a few passes over them, or O(PACES x PRICES x AGES) in numpy.
        """
        odds = self._odds(features)
        yield
        paces, of_class, counts = np.unique(self.paces, return_inverse=True, return_counts=True)
        rows = len(paces)
        of = of_class[reached(odds, np.array(self.cuts))]
        yield
        cell = of * AGES + ages
        yield from self._foresee(cell, is_back, np.exp2((paces - USUAL_PACE) / PACES_AN_OCTAVE))
        answered = tokens * is_back
        rooms = [tokens / memory, np.full(len(age), 1 / boundaries)] if boundaries else [tokens / memory]
        held, hit = yield from kept_up_to(cell, rows, rooms, age, answered)
        most = float(hit[:, -1].sum())
        self.by_length = []
        if (held[:, :, -1].sum(1) <= 1).all() or most <= 0:
            self.gain = 1.0
            return
        by_pace = []
        for pace in paces.tolist():
            yield
            by_pace.append(worth_by_age(self.usual, pace))
        yield
        any_worth = worth_by_age(self.alike, USUAL_PACE)
        yield
        told_apart = yield from hits_at(np.array(by_pace), counts, held, hit)
        yield
        held_by_all, hit_by_all = held.sum(1), hit.sum(0)
        alike = yield from hits_at(
            np.array([any_worth]), counts.sum(keepdims=True), held_by_all[:, np.newaxis], hit_by_all[np.newaxis]
        )
        doubt = DOUBTED_ANSWERS * most / int(is_back.sum())
        self.gain = (told_apart + doubt) / (alike + doubt)
        by_time = float(np.interp(1.0, held_by_all.max(0), hit_by_all))
        self.rise = (alike + doubt) / (by_time + doubt)
        if not boundaries or held_by_all[1, -1] <= 1:
            return
        yield
        of = np.log2(tokens.clip(1 << SHORTEST, (1 << SHORTEST + LENGTHS) - 1)).astype(np.int64) - SHORTEST
        held, hit = yield from kept_up_to(of * AGES + ages, LENGTHS, rooms, age, answered)
        for share in BOUNDARY_SHARES:
            yield
            priced = LENGTH_SIZES / ((1 - share) * LENGTH_SIZES + share * memory / boundaries)
            longer = yield from hits_at(priced[:, np.newaxis] * any_worth, np.ones(LENGTHS, np.int64), held, hit)
            self.by_length.append((longer + doubt) / (alike + doubt))


def came_and_there(
    cell: NDArray[np.int64], is_back: NDArray[np.bool_], classes: int
) -> Generator[None, None, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """How many visits of each class were answered at each age, and how many were there then, both of shape [classes, AGES]; in
    slices.

    Args:
        cell: of each visit its class and age, as one number.
        is_back: whether it was answered.
    """
    yield
    came = np.bincount(cell[is_back], minlength=classes * AGES).reshape(classes, AGES)
    yield
    there = np.bincount(cell, minlength=classes * AGES).reshape(classes, AGES)[:, ::-1].cumsum(1)[:, ::-1]
    yield
    return came, there


def chances_by_age(came: list[int], there: list[float]) -> list[float]:
    """The chance of an answer at each age, from how many answers came and how many visits were there, or how many of the usual
    pace would have had as many.

    That nobody was answered at an age that hardly any visit reached does not say that nobody is. In place of those that are
    missing there, an answer is half as likely as at the age before, and as likely at least as at all ages together. So while
    nobody has come back, what waits for longest is worth most: younger ages have brought nothing. And what is late where
    clients take turns is not given up at once.
    """
    least = (sum(came) + 1) / (sum(there) + 1)
    chance, chances = 0.0, []
    for answers, visits in zip(came, there, strict=True):
        missing = max(0.0, REACHED - visits)
        chance = (answers + missing * max(least, STILL_DUE * chance)) / (visits + missing)
        chances.append(chance)
    return chances


def kept_up_to(
    cell: NDArray[np.int64], rows: int, rooms: list[NDArray[Any]], age: NDArray[np.int64], hit: NDArray[Any]
) -> Generator[None, None, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """What is held in each of some memories, and hit, of each of some rows if it is kept up to each bound of ages: of shapes
    [memories, rows, AGES + 1] and [rows, AGES + 1]; in slices.

    Args:
        cell: of each visit its row and age, as one number.
        rooms: for each memory the room of each visit there.
        age, hit: of each visit its age, and what is hit if it is kept until then.
    """
    shape = rows, AGES
    held = np.zeros((len(rooms), rows, AGES + 1))
    for i, room in enumerate(rooms):
        yield
        ended = np.bincount(cell, room, rows * AGES).reshape(shape).cumsum(1)
        yield
        over = np.bincount(cell, room * age, rows * AGES).reshape(shape).cumsum(1)
        held[i, :, 1:] = over + (ended[:, -1:] - ended) * AGE_BOUNDS[1:]
    yield
    hits = np.bincount(cell, hit, rows * AGES).reshape(shape).cumsum(1)
    return held, np.hstack([np.zeros((rows, 1)), hits])


def hits_at(
    worth: NDArray[np.float64], counts: NDArray[np.int64], held: NDArray[np.float64], hit: NDArray[np.float64]
) -> Generator[None, None, float]:
    """What is hit if each row is kept while it is worth some price, at the price at which that fits into each memory; in
    slices.

    Args:
        worth: of each row at each age, shape [rows, AGES].
        counts: how many classes a row is; the prices that are tried are worths of as many.
        held: share of each memory that a row takes if it is kept up to each bound of ages, shape [memories, rows, AGES + 1].
        hit: what is hit of it, shape [rows, AGES + 1].
    """
    least = np.minimum.accumulate(worth, 1)
    yield
    order = np.argsort(least, axis=None)
    up_to = counts[order // AGES].cumsum()
    tried = np.linspace(up_to[-1] - 1, 0, PRICES).astype(np.int64)
    prices = least.reshape(-1)[order[np.searchsorted(up_to, tried, "right")]]
    yield
    is_kept = (least >= prices[:, np.newaxis, np.newaxis]).view(np.uint8)
    yield
    kept = is_kept.sum(2, dtype=np.uint8)  # up to which bound, shape [PRICES, rows]
    yield
    row = np.arange(len(hit))
    held_at, hit_at = held[:, row, kept].sum(2).max(0), hit[row, kept].sum(1)
    return float(np.interp(1.0, np.concatenate([[0.0], held_at]), np.concatenate([[0.0], hit_at])))


def ages_of(age: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bin of each age."""
    return reached(np.minimum(age, OLDEST).astype(np.int32), INNER_BOUNDS)


def reached(values: NDArray[Any], bounds: NDArray[Any]) -> NDArray[np.int64]:
    """How many of a few bounds each value has reached: by comparing all with all, for the branches of a binary search are
    mispredicted.
    """
    count: NDArray[np.int64] = (values >= bounds[:, np.newaxis]).view(np.uint8).sum(0, dtype=np.uint8).astype(np.int64)
    return count


def bins_of(features: NDArray[np.int64], i: int) -> NDArray[np.int64]:
    """The bin of one feature of each visit."""
    return features >> BIN_BITS * i & BIN_MASK


def worth_by_age(chances: list[float], pace: int) -> list[float]:
    """The index of Gittins at each age, from the usual chances of an answer at each; both of length AGES.

    At each age it is the slope to the next corner of the least concave function above the answered share, as a function of the
    time for which visits were held until then. Cost: O(AGES).
    """
    times = exp2((pace - USUAL_PACE) / PACES_AN_OCTAVE)
    answered, held = [0.0], [0.0]
    for chance, width in zip(chances, AGE_WIDTHS, strict=True):
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
