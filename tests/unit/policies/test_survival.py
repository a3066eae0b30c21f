"""Which turns are answered, and when: learned from made populations whose truth is known."""

from __future__ import annotations

from itertools import pairwise
from math import exp
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_tree.policies.density.survival import AGE_BOUNDS, AGE_WIDTHS, AGES, FEW_ANSWERS, Survival, gittins
from unified_tree.policies.density.turns import Turn

Waits = list[tuple[int | None, int]]
"""Of each turn after how many ticks it is answered, None for never, and how long its text is."""
LONG_AGO = 1 << 16


def answer(turn: Turn, wait: int) -> None:
    """A request goes on from it after so many ticks."""
    turn.by = Turn(turn.at + wait, 0, turn.end, turn)


def entered(waits: Waits, now: int, size: int = 1 << 12) -> Survival:
    """One turn a tick up to some time; of the answers those that have come by then."""
    survival = Survival(size)
    turns = [Turn(at, 0, length, None) for at, (_, length) in enumerate(waits)]
    for turn in turns:
        survival.enter(turn)
    for turn, (wait, _) in zip(turns, waits, strict=True):
        if wait is not None and turn.at + wait <= now:
            answer(turn, wait)
    return survival


def learn(survival: Survival, now: int) -> Survival:
    """All slices."""
    for _ in survival.learn(now):
        pass
    return survival


def learned(waits: Waits, now: int | None = None) -> Survival:
    """Learn after the last answer has come."""
    now = len(waits) + LONG_AGO if now is None else now
    return learn(entered(waits, now), now)


def group_of(survival: Survival, length: int) -> int:
    return int(survival.group(Turn(0, 0, length, None)))


def known(survival: Survival) -> tuple[list[float], list[list[float]], list[int]]:
    """All that it says."""
    groups = range(len(survival.shares))
    worth = [[survival.worth(group, int(age)) for age in AGE_BOUNDS] for group in groups]
    lengths = [group_of(survival, 1 << i) for i in range(24)]
    return survival.shares, worth, lengths


waits = st.lists(st.tuples(st.none() | st.integers(0, 5_000), st.integers(1, 1 << 20)), min_size=1, max_size=300)


@given(waits, st.integers(0, 10_000))
def test_shares_are_shares_and_worths_are_rates(turns: Waits, later: int) -> None:
    """A turn is answered once at most: in a tick by chance at most, and of a hundred never by more than all."""
    shares, worths, _ = known(learned(turns, len(turns) + later))
    assert shares and all(0 <= share <= 1 for share in shares)
    for worth in worths:
        assert all(0 < each < 2 for each in worth)


@given(waits)
def test_learning_in_slices_is_learning_at_once(turns: Waits) -> None:
    """What happens between the slices is for the next time."""
    now = len(turns) + LONG_AGO
    at_once, in_slices = learned(turns), entered(turns, now)
    slices = in_slices.learn(now)
    for age, _ in enumerate(slices):
        turn = Turn(now, 0, 40, None)
        in_slices.enter(turn)
        answer(turn, age)
    assert known(in_slices) == known(at_once)


@given(st.lists(st.floats(0.001, 0.3), min_size=AGES, max_size=AGES))
def test_rates_that_only_fall_are_worth_ever_less(chances: list[float]) -> None:
    """Nothing is gained by waiting for less, so each age is worth its own rate."""
    rates, lowest = [], 1.0
    for chance, width in zip(chances, AGE_WIDTHS.tolist(), strict=True):
        lowest = min(lowest, chance / width)
        rates.append(lowest)
    hazard = [rate * width / (1 + rate * width / 2) for rate, width in zip(rates, AGE_WIDTHS.tolist(), strict=True)]
    worth = gittins(np.array([hazard]))[0].tolist()
    assert worth == pytest.approx(rates, rel=1e-4)


@pytest.mark.parametrize("seed", range(10))
def test_the_index_is_the_best_slope_to_any_later_age(seed: int) -> None:
    draw = Random(seed)
    hazard = [draw.choice([0.0, 0.3 * draw.random() ** 4, 0.3 * draw.random()]) for _ in range(AGES)]
    answers, time = [0.0], [0.0]
    for chance, width in zip(hazard, AGE_WIDTHS.tolist(), strict=True):
        left = 1 - answers[-1]
        answers.append(answers[-1] + left * chance)
        time.append(time[-1] + (left + 1 - answers[-1]) / 2 * width)
    best = [max((answers[b] - answers[a]) / (time[b] - time[a]) for b in range(a + 1, AGES + 1)) for a in range(AGES)]
    assert gittins(np.array([hazard]))[0].tolist() == pytest.approx(best)


def test_answers_that_come_at_a_constant_rate_are_worth_that_rate() -> None:
    draw = np.random.default_rng(1)
    rate = 0.02
    survival = learned([(int(wait), 100) for wait in draw.geometric(rate, 4_000)])
    assert [survival.worth(0, age) for age in (0, 5, 20, 60, 100)] == pytest.approx([rate] * 5, rel=0.3)


def test_those_that_wait_for_long_are_mostly_those_that_are_never_answered() -> None:
    draw = np.random.default_rng(2)
    survival = learned([(int(wait) if at % 2 else None, 100) for at, wait in enumerate(draw.geometric(0.05, 4_000))])
    assert survival.shares[0] == pytest.approx(0.5, rel=0.1)
    worth = [survival.worth(0, age) for age in (0, 20, 40, 80, 160)]
    assert worth == sorted(worth, reverse=True)
    waiting = exp(-0.05 * 40)
    assert survival.worth(0, 40) == pytest.approx(0.05 * waiting / (1 + waiting), rel=0.4), "of those still to come"


def test_the_longer_it_has_waited_the_longer_it_waits() -> None:
    draw = np.random.default_rng(3)
    survival = learned([(1 + int(20 * wait), 100) for wait in draw.pareto(1.0, 4_000)])
    for age in (0, 30, 100, 400):
        assert survival.worth(0, age) == pytest.approx(1 / (age + 20), rel=0.35)


def test_between_two_peaks_a_turn_is_worth_less() -> None:
    """Half of the answers come at once, and half after a hundred ticks."""
    draw = Random(4)
    survival = learned([(draw.choice([draw.randrange(2), draw.randrange(95, 105)]), 100) for _ in range(2_000)])
    low = min(range(2, 60), key=lambda age: survival.worth(0, age))
    assert survival.worth(0, low) < 0.7 * min(survival.worth(0, 0), survival.worth(0, 90))
    assert survival.worth(0, 300) < 0.5 * survival.worth(0, low)


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_not_told_apart_for_noise(seed: int) -> None:
    draw = Random(seed)
    waits: Waits = [(draw.choice([None, 10, 200]), draw.choice([10, 100, 1_000, 10_000])) for _ in range(2_000)]
    assert len(learned(waits).shares) == 1


def test_groups_are_told_apart_by_what_foretells_answers() -> None:
    """Short texts are answered nine times in ten, and long ones once in ten."""
    draw = Random(6)
    often = {10: 0.9, 10_000: 0.1}
    lengths = [draw.choice([10, 10_000]) for _ in range(2_000)]
    survival = learned([(draw.randrange(5, 40) if draw.random() < often[each] else None, each) for each in lengths])
    shares = {length: survival.shares[group_of(survival, length)] for length in often}
    assert shares == pytest.approx(often, abs=0.05)
    for age in (0, 10, 30):
        assert survival.worth(group_of(survival, 10), age) > 3 * survival.worth(group_of(survival, 10_000), age)


def test_groups_may_be_answered_after_other_times() -> None:
    draw = Random(7)
    waits: Waits = []
    for _ in range(3_000):
        length = draw.choice([10, 10_000])
        is_answered = draw.random() < (0.9 if length == 10 else 0.4)
        waits.append(((10 if length == 10 else 300) if is_answered else None, length))
    survival = learned(waits)
    soon, late = group_of(survival, 10), group_of(survival, 10_000)
    assert survival.worth(soon, 5) > survival.worth(late, 5)
    assert survival.worth(soon, 200) < survival.worth(late, 200)


@pytest.mark.parametrize("answers", [0, FEW_ANSWERS - 1, 16 * FEW_ANSWERS])
def test_of_few_answers_no_groups_are_made(answers: int) -> None:
    """Though all that are answered are short, and no other is."""
    draw = Random(9)
    turns: Waits = [*[(50, 10)] * answers, *[(None, 10_000)] * (512 - answers)]
    draw.shuffle(turns)
    survival = learned(turns)
    assert (len(survival.shares) > 1) == (answers > FEW_ANSWERS)
    assert all(survival.worth(0, age) > 0 for age in (0, 10, 1_000, 100_000))


def test_before_anybody_came_back_the_old_are_worth_less() -> None:
    survival = learned([(None, 100)] * 200, 300)
    worth = [survival.worth(0, int(age)) for age in AGE_BOUNDS[:-1] if age > 300]
    assert all(later < earlier for earlier, later in pairwise(worth))


def test_those_that_have_not_waited_for_long_are_not_said_to_be_unanswered() -> None:
    """The short ones come back after a hundred ticks; of the last ninety turns, all of them short, none had the time."""
    draw = Random(10)
    turns: Waits = [(100, 10) if draw.random() < 0.5 else (None, 10_000) for _ in range(1_000)]
    survival = learned([*turns, *[(100, 10)] * 90], len(turns) + 90)
    assert survival.shares[group_of(survival, 10)] > 0.9


def test_before_it_has_learned_nothing_is_known() -> None:
    survival = entered([(3, 10)] * 100, 200)
    assert not survival.is_ready and survival.shares == [] and group_of(survival, 10) == 0
    assert learn(survival, 200).is_ready


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 129])
def test_any_number_of_turns_can_be_learned_from(count: int) -> None:
    for wait in (None, 0, 7):
        survival = learned([(wait, at + 1) for at in range(count)])
        assert survival.is_ready and survival.worth(11, 1 << 40) > 0


def test_only_the_last_turns_are_remembered() -> None:
    last: Waits = [(40, 100)] * 64
    survival = Survival(64)
    old = [Turn(at, 0, 100, None) for at in range(500)]
    for turn in old:
        survival.enter(turn)
        answer(turn, 2)
    for at in range(500, 564):
        turn = Turn(at, 0, 100, None)
        survival.enter(turn)
        answer(turn, 40)
    for turn in old:  # their slots are others'
        answer(turn, 1)
    assert known(learn(survival, 10_000)) == known(learned(last, 10_000))


def test_a_turn_that_has_changed_is_judged_anew() -> None:
    draw = Random(8)
    lengths = [draw.choice([10, 10_000]) for _ in range(1_000)]
    survival = learned([(10, each) if each == 10 else (None, each) for each in lengths])
    turn = Turn(0, 0, 10, None)
    before = survival.group(turn)
    turn.went_on(10_000, 5)
    assert survival.group(turn) == group_of(survival, 10_000) < before
