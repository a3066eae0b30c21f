"""Which turns are answered, and after how long: learned from the last turns of all sessions, and what that is worth.

A turn is *answered* when a request goes on from it. At each age (ticks of the tree's clock since the turn) the *hazard* is the
chance that the answer comes now, of the turns that still wait (Kaplan and Meier, 1958). Turns are told apart by groups that are
answered about as often: what each of their figures says of that adds up to odds (naive Bayes). A group has the delays of all
turns at first, times its own share of answers (a cure model: some are never answered, Boag, 1949), and more of its own hazards
with each of its turns. Groups are told apart only if that foretells answers better for turns they were not learned from.

The text of a turn is worth the chance of an answer by some later age, divided by the time for which it is held until then;
the largest quotient of all later ages counts: the index of Gittins (1979) for one arrival.
"""

from __future__ import annotations

from bisect import bisect_right
from math import log
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from mypy_extensions import i64

from unified_tree.policies.density.turns import BIN_BITS, BINS, FEATURES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from unified_tree.policies.density.turns import Turn

Figures: TypeAlias = "NDArray[np.float64]"
Numbers: TypeAlias = "NDArray[np.int64]"
Flags: TypeAlias = "NDArray[np.bool_]"

TABLED: Final = 4096
"""`BIN_OF` has the bins of the ages below it; the bounds of those above are eight times those of three octaves before."""
_FIRST: Final = np.unique(np.rint(2.0 ** (np.arange(37) / 3)))
AGE_BOUNDS: Final = np.concatenate([_FIRST, *(8.0**i * _FIRST[-9:] for i in range(1, 5))])[: len(_FIRST) + 29]
"""The ages of a bin are from its bound on; three bins an octave."""
AGE_WIDTHS: Final = np.diff(AGE_BOUNDS)
AGES: Final = len(AGE_WIDTHS)
BIN_OF: Final[list[int]] = (np.searchsorted(AGE_BOUNDS, np.arange(TABLED), "right") - 1).clip(0).tolist()
FEW_ANSWERS: Final = 8
GROUPS: Final = 12
TURNS_A_GROUP: Final = 64
PATIENCE: Final = 2.0
"""A turn that waits for so many times the median delay counts as not answered."""
EXPECTED: Final = 4.0
"""So many turns are thought to have come as expected, at each age, and of each group."""
EXPECTED_OF_GROUP: Final = 12.0
EXPECTED_OF_BIN: Final = 10.0
MOST: Final = 0.95
FORETELLS: Final = 0.01
"""Groups are used if they raise the mean log-likelihood of answers by more than this, and than two standard errors."""
GOLDEN: Final = (5.0**0.5 - 1.0) / 2.0
"""Multiples of it fall on either side of a half in no period, so traffic that alternates does not fall into two halves."""
BIN_MASK: Final = (1 << BIN_BITS) - 1


def bin_of(age: i64) -> i64:
    """The bin of an age, from 0 on.

    >>> [bin_of(age) for age in (0, 1, 2, 3, 4, 5, 10**6)]
    [0, 0, 1, 2, 3, 4, 56]
    """
    behind: i64 = 0
    while age >= TABLED:
        age >>= 3
        behind += 9
    return i64(BIN_OF[age]) + behind


class Survival:
    """The last turns, and what they say.

    Args:
        size: how many turns are remembered.

    Attributes:
        is_ready: whether anything is learned.
        shares: of each group, how many of its turns are answered.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._turns: list[Turn] = []
        self.count = 0
        self._epoch: i64 = 0
        self._weights: list[list[float]] = []
        self._cuts: list[float] = []
        self._worth: list[list[float]] = []
        self.is_ready = False
        self.shares: list[float] = []

    def enter(self, turn: Turn) -> None:
        """Remember a new turn. Cost: O(1)."""
        if self.count < self._size:
            self._turns.append(turn)
        else:
            self._turns[self.count % self._size] = turn
        self.count += 1

    def group(self, turn: Turn) -> i64:
        """The group of a turn. Cost: O(FEATURES) once for each turn since it learned last."""
        if turn.judged != self._epoch:
            turn.judged = self._epoch
            turn.group = 0
            if self._cuts:
                features, odds = turn.features, 0.0
                for weights in self._weights:
                    odds += weights[features & BIN_MASK]
                    features >>= BIN_BITS
                turn.group = bisect_right(self._cuts, odds)
        return turn.group

    def worth(self, group: i64, age: i64) -> float:
        """The worth of a turn's text at an age, in answers a tick; a number behind the last group's counts as that group.
        Cost: O(bits of the age).
        """
        return self._worth[min(group, len(self._worth) - 1)][min(AGES - 1, bin_of(age))]

    def learn(self, now: int) -> Iterator[None]:
        """Learn anew from what is remembered, in slices: one at each step. Cost of a slice: a few passes over it, in
        numpy but for the first slice.
        """
        count = len(self._turns)
        at = np.fromiter([turn.at for turn in self._turns], np.int64, count)  # faster than `np.array`
        after = np.fromiter([-1 if turn.by is None else turn.by.gap for turn in self._turns], np.int64, count)
        features = np.fromiter([turn.features for turn in self._turns], np.int64, count)
        yield
        is_back = after >= 0
        age = np.where(is_back, after, now - at)
        bins = np.clip(np.searchsorted(AGE_BOUNDS, age, "right") - 1, 0, AGES - 1)
        is_few = int(is_back.sum()) < FEW_ANSWERS
        usual = float(np.median(age if is_few else age[is_back]))
        is_known = is_back | (age > (0.0 if is_few else PATIENCE * usual))
        yield
        expected = 1.0 - np.exp(-AGE_WIDTHS / (AGE_BOUNDS[:-1] + max(1.0, usual) + 1.0))
        came, there = _came_and_there(bins, is_back, 1)
        hazard = np.clip((came[0] + EXPECTED * expected) / (there[0] + EXPECTED), 0.0, MOST)
        waiting = np.concatenate([[1.0], np.cumprod(1.0 - hazard)])
        answered = (1.0 - waiting) / (1.0 - waiting[-1])  # of those that are answered at all, until each age
        yield
        groups = 1 if is_few else max(1, min(GROUPS, count // TURNS_A_GROUP))
        if groups > 1 and not (yield from _foretells(features, is_back, is_known, groups)):
            groups = 1
        weights, odds = yield from _weigh(features, is_back, is_known, features)
        cuts = _cuts(odds, groups)
        of = np.searchsorted(cuts, odds, "right")
        shares = _shares(of, is_back, is_known, groups)
        yield
        came, there = _came_and_there(of * AGES + bins, is_back, groups)
        share = shares[:, np.newaxis]
        due = share * np.diff(answered) / np.maximum(1.0 - share * answered[:-1], 1e-9)
        worths = gittins((came + EXPECTED_OF_GROUP * due) / (there + EXPECTED_OF_GROUP))
        self._weights, self._cuts = weights.tolist(), cuts.tolist()
        self.shares = shares.tolist()
        self._worth = worths.tolist()
        self._epoch += 1
        self.is_ready = True


def _bins_of(features: Numbers, i: int) -> Numbers:
    return features >> BIN_BITS * i & BIN_MASK


def _weigh(
    features: Numbers, is_back: Flags, is_known: Flags, others: Numbers
) -> Generator[None, None, tuple[Figures, Figures]]:
    """In slices: what each bin of each figure says, as a logarithm, shape [FEATURES, BINS]; and what others sum up to."""
    share = (is_back.sum() + 1) / (is_known.sum() + 2)
    weights, odds = np.zeros((FEATURES, BINS)), np.zeros(len(others))
    known, back = features[is_known], features[is_back]
    for i in range(FEATURES):
        seen = np.bincount(_bins_of(known, i), minlength=BINS)
        answers = np.bincount(_bins_of(back, i), minlength=BINS)
        part = np.clip((answers + EXPECTED_OF_BIN * share) / (seen + EXPECTED_OF_BIN), 0.001, 0.999)
        weights[i] = np.log(part / (1 - part)) - log(share / (1 - share))
        odds += weights[i][_bins_of(others, i)]
        yield
    return weights, odds


def _cuts(odds: Figures, groups: int) -> Figures:
    """The odds between as large groups."""
    return np.sort(odds)[[len(odds) * i // groups for i in range(1, groups)]]


def _shares(of: Numbers, is_back: Flags, is_known: Flags, groups: int) -> Figures:
    """How many turns of each group are answered."""
    share = (is_back.sum() + 1) / (is_known.sum() + 2)
    answers = np.bincount(of[is_back], minlength=groups)
    found: Figures = (answers + EXPECTED * share) / (np.bincount(of[is_known], minlength=groups) + EXPECTED)
    return found


def _foretells(features: Numbers, is_back: Flags, is_known: Flags, groups: int) -> Generator[None, None, bool]:
    """In slices: whether groups that are learned from half of the turns make the answers of the others likelier."""
    half = np.arange(len(features)) * GOLDEN % 1.0 < 0.5
    _, odds = yield from _weigh(features[half], is_back[half], is_known[half], features)
    of = np.searchsorted(_cuts(odds[half], groups), odds, "right")
    shares = _shares(of[half], is_back[half], is_known[half], groups)
    yield
    share = (is_back[half].sum() + 1) / (is_known[half].sum() + 2)
    told, back = shares[of[~half & is_known]], is_back[~half & is_known]
    likelier = np.where(back, np.log(told / share), np.log((1 - told) / (1 - share)))
    mean = float(likelier.mean()) if likelier.size else 0.0
    doubt = 2 * float(likelier.std()) / max(1, likelier.size) ** 0.5 if likelier.size else 0.0
    return mean > max(FORETELLS, doubt)


def _came_and_there(cell: Numbers, is_back: Flags, groups: int) -> tuple[Numbers, Numbers]:
    """How many turns of each group were answered at each age, and how many waited then, both of shape [groups, AGES].

    Args:
        cell: of each turn its group and age, as one number.
    """
    came = np.bincount(cell[is_back], minlength=groups * AGES).reshape(groups, AGES)
    there = np.bincount(cell, minlength=groups * AGES).reshape(groups, AGES)[:, ::-1].cumsum(1)[:, ::-1]
    return came, there


def gittins(hazard: Figures) -> Figures:
    """The worth of waiting at each age, in answers a tick, from the hazards of each; both of shape [groups, AGES].

    From an age on to some later one answers come, and time passes for those that still wait; the best of all later ages
    counts. Cost: O(groups AGES²) in numpy.
    """
    first = np.zeros((len(hazard), 1))
    waiting = np.concatenate([first + 1.0, np.cumprod(1.0 - np.clip(hazard, 0.0, MOST), 1)], 1)
    held = np.concatenate([first, np.cumsum((waiting[:, :-1] + waiting[:, 1:]) / 2 * AGE_WIDTHS, 1)], 1)
    answers = waiting[:, :, np.newaxis] - waiting[:, np.newaxis]
    time = held[:, np.newaxis] - held[:, :, np.newaxis]
    rate = np.divide(answers, time, out=np.zeros_like(time), where=time > 0)
    best: Figures = rate.max(2)[:, :AGES]
    return best
