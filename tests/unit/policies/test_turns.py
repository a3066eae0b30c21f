"""What is known of sessions: which request goes on from which, and which only shares its beginning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from traffic import PATHS, STATES, Served, Texts

from unified_tree import Key
from unified_tree.nodes.line import Line
from unified_tree.policies.density.turns import (
    BIN_BITS,
    BINS,
    FEATURES,
    LEAST_SHARE,
    Reach,
    Turn,
    latest,
    octave,
    session_of,
)


def turn_of(server: Served, tokens: list[int]) -> Turn:
    """The last turn of the session that has a text."""
    turn = server.session(tokens).turn
    assert turn is not None
    return turn


def others(server: Served, texts: Texts, count: int, length: int = 5) -> None:
    """Requests that share nothing with any other."""
    for _ in range(count):
        server.serve(texts.new(length, length))


def test_a_first_request_is_a_first_turn() -> None:
    server, texts = Served("density", PATHS, 300), Texts(1)
    text = texts.new(24, 24)
    server.serve(text)
    turn = turn_of(server, text)
    assert (turn.turns, turn.start, turn.end, turn.gap, turn.is_open) == (0, 0, 24, -1, False)


def test_a_request_that_publishes_in_pieces_is_one_turn() -> None:
    server, texts = Served("density", STATES, 300, 20), Texts(1)
    text = texts.new(24, 24)
    server.serve(text, save_at=(8, 16))
    turn = turn_of(server, text)
    assert (turn.turns, turn.start, turn.end) == (0, 0, 24)


def test_a_session_goes_on() -> None:
    server, texts = Served("density", PATHS, 300), Texts(2)
    text = texts.new(24, 24)
    server.serve(text)
    first = turn_of(server, text)
    others(server, texts, 3)
    text += texts.new(6, 6)
    server.serve(text)
    turn = turn_of(server, text)
    assert first.by is turn
    assert (turn.turns, turn.gap, turn.begin, turn.end) == (1, 4, 24, 30)
    others(server, texts, 5)
    server.serve(text + texts.new(2, 2))
    turn = turn_of(server, text)
    assert (turn.turns, turn.gap, turn.gap_before) == (2, 6, 4)


def test_a_session_whose_answer_was_dropped_goes_on() -> None:
    server, texts = Served("density", PATHS, 300), Texts(3)
    text = texts.new(24, 24)
    server.serve(text + texts.new(4, 4))
    turn = text + texts.new(10, 10)
    server.serve(turn)
    assert (turn_of(server, turn).turns, turn_of(server, turn).start, turn_of(server, turn).end) == (1, 0, 34)


@pytest.mark.parametrize("pieces", [(), (8, 16)], ids=["at once", "in pieces"])
@pytest.mark.parametrize("dropped", [0, 6])
def test_a_session_comes_back_after_its_text_was_evicted(pieces: tuple[int, ...], dropped: int) -> None:
    server, texts = Served("density", STATES, 60, 20), Texts(4)
    text = texts.new(24, 24)
    server.serve(text + texts.new(dropped, dropped))
    others(server, texts, 8, 20)
    text += texts.new(9, 9)
    assert server.serve(text, save_at=pieces) == 0
    turn = turn_of(server, text)
    assert (turn.turns, turn.begin, turn.end, turn.is_open) == (1, 24, 33, False)
    assert turn.gap > 8


def test_who_shares_less_than_a_third_forks_off() -> None:
    server, texts = Served("density", PATHS, 300), Texts(5)
    shared = texts.new(5, 5)
    first, second = shared + texts.new(30, 30), shared + texts.new(30, 30)
    server.serve(first)
    server.serve(second)
    assert (turn_of(server, first).turns, turn_of(server, first).end) == (0, 35)
    turn = turn_of(server, second)
    assert (turn.turns, turn.start, turn.end) == (0, 5, 35)
    places = server.session(shared).places
    assert places is not None and [(at, place.uses) for at, place in places.items()] == [(5, 1)]


def test_who_shares_less_than_the_last_turn_did_forks_off() -> None:
    server, texts = Served("density", PATHS, 300), Texts(6)
    system = texts.new(20, 20)
    first, second = system + texts.new(10, 10), system + texts.new(10, 10)
    server.serve(first)
    server.serve(first + texts.new(6, 6))
    server.serve(second)
    assert turn_of(server, first).turns == 1
    assert (turn_of(server, second).turns, turn_of(server, second).start) == (0, 20)


@pytest.mark.parametrize("kind", [PATHS, STATES])
def test_tries_that_publish_nothing_are_one_turn(kind: str) -> None:
    server, texts = Served("density", kind, 300, 20), Texts(7)
    text = texts.new(24, 24)
    server.serve(text)
    more = text + texts.new(3, 3)
    for _ in range(5):
        server.cache.release(server.cache.acquire(Key(more)))
        others(server, texts, 1)
    server.serve(more)
    assert turn_of(server, more).turns == 1


@pytest.mark.parametrize("tries", [1, 5])
def test_tries_at_a_place_are_one_use(tries: int) -> None:
    server, texts = Served("density", PATHS, 300), Texts(8)
    text = texts.new(24, 24)
    server.serve(text)
    other = text[:4] + texts.new(9, 9)
    for _ in range(tries):
        server.cache.release(server.cache.acquire(Key(other)))
    server.serve(other)
    places = server.session(text).places
    assert places is not None and places[4].uses == 1


def test_of_many_places_in_a_text_the_last_ones_are_known() -> None:
    server, texts = Served("density", PATHS, 900, listed_places=3), Texts(9)
    text = texts.new(60, 60)
    server.serve(text)
    for at in (3, 5, 7, 9, 3, 11):
        server.serve(text[:at] + texts.new(20, 20))
    lines = [server.session(text[:at]) for at in (3, 5, 7, 9, 11)]
    known = {at: place.uses for line in lines for at, place in (line.places or {}).items()}
    assert known == {9: 1, 3: 1, 11: 1}, "3 was forgotten before its second use"


def turn_after(gaps: list[int]) -> Turn:
    """The last turn of a session whose turns came after these gaps."""
    now, turn = 0, Turn(0, 0, 10, None)
    for gap in gaps:
        now += gap
        turn = Turn(now, 0, turn.end + 1, turn)
    return turn


@pytest.mark.parametrize(
    "make",
    [
        lambda: Turn(0, 0, 0, None),
        lambda: Turn(1 << 60, 1 << 60, 1 << 61, None),
        lambda: turn_after([1 << 60, 1, 1 << 59]),
        lambda: turn_after([0] * 100),
    ],
)
def test_each_figure_has_its_bin(make: Callable[[], Turn]) -> None:
    turn = make()
    bins = [int(turn.features) >> BIN_BITS * i & (1 << BIN_BITS) - 1 for i in range(FEATURES)]
    assert max(bins) < BINS and int(turn.features) < 1 << BIN_BITS * FEATURES
    assert bins[0] == octave(turn.turns) and bins[1] == octave(turn.end - turn.start) and bins[2] == octave(turn.gap)


def test_a_line_knows_the_last_turn_of_its_session() -> None:
    line = Line(None, -1, 0)
    assert latest(line) is None
    first = session_of(line).turn = Turn(0, 0, 10, None)
    assert latest(line) is first
    last = first
    for at in range(1, 40):
        last.by = Turn(at, 0, 10, last)
        last = last.by
    assert latest(line) is last is session_of(line).turn


def test_a_line_has_one_session() -> None:
    line = Line(None, -1, 0)
    session = session_of(line)
    assert session_of(line) is session is line.policy_state
    assert (session.turn, session.places, session.saves, session.stairs) == (None, None, None, None)


# -- how far the next request shares what a turn added


def after(shared: list[int], added: int = 80) -> tuple[Reach, Turn]:
    """A session whose first turn added some tokens; each request shares so much of what the turn before it added."""
    reach, turn = Reach(), Turn(0, 0, 0, None)
    turn.went_on(added, 0)
    for at, share in enumerate(shared, 1):
        turn = Turn(at, 0, turn.begin + share, turn)
        turn.went_on(turn.begin + added, at)
        reach.note(turn)
    return reach, turn


def test_what_the_next_request_shares_whole_is_worth_as_much_as_its_session() -> None:
    reach, turn = after([80] * 50)
    assert [reach.share(turn, start, turn.end) for start in range(turn.end)] == pytest.approx([1.0] * turn.end, rel=0.05)


def test_what_is_never_shared_is_worth_little_and_what_was_shared_before_no_less() -> None:
    reach, turn = after([80] + [0] * 200)
    assert {reach.share(turn, 0, at) for at in range(1, turn.begin + 1)} == {1.0}
    assert all(LEAST_SHARE <= reach.share(turn, turn.begin, at) < 0.03 for at in range(turn.begin + 1, turn.end + 1))


def test_where_the_end_is_dropped_the_first_part_is_worth_more() -> None:
    reach, turn = after([60] * 100)
    shares = [reach.share(turn, turn.begin + at - 1, turn.begin + at) for at in range(1, 81)]
    assert shares == sorted(shares, reverse=True)
    assert shares[:60] == pytest.approx([1.0] * 60, rel=0.05)
    assert max(shares[60:]) < 0.1


def test_a_question_behind_a_document_takes_little_off_both_together() -> None:
    """A leaf goes whole: the document is in it, too, and the next request shares that."""
    reach, before = after([0] * 200)
    turn = Turn(1_000, 0, 10_000, before)
    turn.went_on(10_100, 1_000)
    turn = Turn(1_001, 0, 10_000, turn)
    turn.went_on(10_100, 1_001)
    assert reach.share(turn, 0, turn.end) > 0.98
    assert reach.share(turn, turn.begin - 100, turn.end) == pytest.approx(0.5, rel=0.05)
    assert LEAST_SHARE <= reach.share(turn, turn.begin, turn.end) < 0.03
