"""Places where requests fork off: how soon each is used again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from unified_tree.policies.density.turns import Place, Places, rate_of_place

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
    assert [place.used(now) for now in (0, 30, 70)] == [True, True, True]
    place.is_open = True
    assert not place.used(90)
    assert (place.uses, place.first, place.last, place.is_open) == (3, 0, 70, False)


def rate(places: Places, uses: int) -> float:
    place = Place(0)
    for now in range(0, 10 * uses, 10):
        place.used(now)
    return places.rate(place, 20.0, USUAL)


def test_a_place_that_was_used_once_is_worth_as_much_as_such_places_are_used_again() -> None:
    places = Places()
    unknown = [rate(places, uses) for uses in (1, 2)]
    for at in range(100):
        places.note(1)
        if at % 10 == 0:
            places.note(2)
    assert rate(places, 1) == pytest.approx(unknown[0] * 11 / 101)
    assert rate(places, 2) == pytest.approx(unknown[1] / 11), "none was used a third time"


def test_what_was_known_of_places_is_forgotten_bit_by_bit() -> None:
    places = Places()
    for _ in range(10_000):
        places.note(1)
    seldom = rate(places, 1)
    for _ in range(1_000):
        places.note(1)
        places.note(2)
    assert rate(places, 1) > 0.9 * rate(Places(), 1) > 100 * seldom
