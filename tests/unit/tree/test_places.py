"""Places where requests fork off: how soon each is used again, by made uses."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from unified_tree.places import OCTAVES, Places
from unified_tree.turns import Place

USUAL = 100.0


def worth(places: Places, uses: int, time: float, age: int) -> float:
    return places.worth(uses.bit_length(), float(uses), time, age, USUAL)


def learn(places: Places, now: int) -> Places:
    """All slices."""
    for _ in places.learn(now, USUAL):
        pass
    return places


def drawn(gaps: list[float], until: int, dies: float = 0.0) -> Places:
    """Places that are used at random, each after its mean gap, until some time or until it dies."""
    draw, places, events = Random(5), Places(1 << 14), []
    for gap in gaps:
        at = draw.randrange(1_000)
        place = Place(at)
        while at < until:
            events.append((at, place))
            at += 1 + int(draw.expovariate(1 / gap))
            if draw.random() < dies:
                break
    events.sort(key=lambda event: event[0])
    for at, place in events:
        places.used(place, at)
    return places


def test_what_is_used_often_is_worth_more() -> None:
    places = Places(8)
    rates = [worth(places, uses, 1_000, 10) for uses in (1, 2, 5, 20, 200)]
    assert all(more > less for less, more in pairwise(rates))
    assert worth(places, 5, 100, 10) > worth(places, 5, 1_000, 10), "as many uses in less time"


@pytest.mark.parametrize("uses", [1, 3, 100])
def test_it_is_worth_less_while_nobody_comes(uses: int) -> None:
    places = Places(8)
    rates = [worth(places, uses, 500, age) for age in (0, 1, 10, 100, 10_000)]
    assert all(later < earlier for earlier, later in pairwise(rates)) and rates[-1] > 0


def test_what_was_used_often_is_about_as_often_used() -> None:
    """Before anything is learned, and after it was learned from places that go on as they did."""
    unlearned = Places(8)
    for each in (unlearned, learn(drawn([50.0] * 300, 2_000), 2_000)):
        assert each.worth(6, 40.0, 40 * 50.0, 20, USUAL) == pytest.approx(1 / 50, rel=0.25)


def test_what_is_used_less_than_was_promised_is_worth_less() -> None:
    """Half of the places die after each use."""
    living, dying = (worth(learn(drawn([50.0] * 500, 2_000, dies), 2_000), 2, 100, 20) for dies in (0.0, 0.5))
    assert dying < 0.5 * living


def test_rates_are_off_by_octaves_of_uses() -> None:
    """Most texts are forked off once, but those that were used four times are used for ever."""
    draw, places, now = Random(6), Places(1 << 13), 0
    for _ in range(200):
        now += 10
        places.used(Place(now), now)
    steady = [Place(now) for _ in range(20)]
    for _ in range(40):
        for place in draw.sample(steady, 20):
            now += 1
            places.used(place, now)
    learn(places, now)
    fresh = Places(8)
    once, often = (worth(places, uses, 20 * uses, 5) / worth(fresh, uses, 20 * uses, 5) for uses in (1, 30))
    assert once < 0.5
    assert often > 0.8


def test_only_the_last_uses_are_remembered() -> None:
    """The first ones are used again at once and often, the last ones never."""
    rates = []
    for forgotten in (0, 100):
        places, now = Places(16), 0
        for _ in range(forgotten):
            place = Place(now)
            for _ in range(2):
                now += 1
                places.used(place, now)
        for _ in range(16):
            now += 1
            places.used(Place(now), now)
        rates.append(worth(learn(places, now + 1_000), 1, 0, 10))
    assert rates[0] == pytest.approx(rates[1])


def test_a_place_knows_its_uses() -> None:
    place, places = Place(0), Places(8)
    for now in (0, 30, 70):
        places.used(place, now)
    assert (place.uses, place.first, place.last) == (3, 0, 70)


def test_of_no_uses_nothing_is_learned() -> None:
    places = Places(8)
    before = [worth(places, uses, 10, 5) for uses in (1, 2, 1 << OCTAVES - 2)]
    assert [worth(learn(places, 100), uses, 10, 5) for uses in (1, 2, 1 << OCTAVES - 2)] == before
