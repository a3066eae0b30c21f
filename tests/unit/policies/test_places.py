"""Places where requests fork off: how soon each is used again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from unified_tree.policies.density.turns import Place, rate_of_place

USUAL = 100.0


def test_what_is_used_often_is_worth_more() -> None:
    rates = [rate_of_place(uses, 1_000, 10, USUAL) for uses in (1, 2, 5, 20, 200)]
    assert all(more > less for less, more in pairwise(rates))
    assert rate_of_place(5, 100, 10, USUAL) > rate_of_place(5, 1_000, 10, USUAL), "as many uses in less time"


@pytest.mark.parametrize("uses", [1, 3, 100])
def test_it_is_worth_less_while_nobody_comes(uses: int) -> None:
    rates = [rate_of_place(uses, 500, age, USUAL) for age in (0, 1, 10, 100, 10_000)]
    assert all(later < earlier for earlier, later in pairwise(rates)) and rates[-1] > 0


def test_what_was_used_often_is_about_as_often_used() -> None:
    assert rate_of_place(40, 40 * 50, 20, USUAL) == pytest.approx(1 / 50, rel=0.25)


def test_a_place_knows_its_uses() -> None:
    """A request that tries again is the same."""
    place = Place(0)
    for now in (0, 30, 70):
        place.used(now)
    place.is_open = True
    place.used(90)
    assert (place.uses, place.first, place.last, place.is_open) == (3, 0, 70, False)
