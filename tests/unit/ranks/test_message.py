"""The message: its layout, and what AND makes of it, against sets and minima."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_threads import reduce_messages

from unified_tree.controllers.ranks import MessageShape
from unified_tree.controllers.ranks.ballot import Ballot
from unified_tree.controllers.ranks.message import (
    are_equal,
    message_bytes,
    neutral,
    opening_message,
    session_of,
    with_complement,
)
from unified_tree.terms.errors import ConfigurationError, DivergenceError

SMALL = MessageShape(slots=2, candidates=8, completions=8, kinds=("load",))


def test_the_layout_is_as_documented() -> None:
    shape = MessageShape(slots=3, candidates=16, completions=24, kinds=("a", "b"))
    assert message_bytes(shape, 2) == len(Ballot(shape, 0, 2).message()) == 2 * 24 + 2 * 24 // 4 + 3 * (33 + 16 // 8)


def test_bytes_of_a_small_message() -> None:
    ballot = Ballot(SMALL, 1, 2)
    ballot.tickets.open(b"x", 3)
    assert ballot.message()[50] == 0b11111101, "opened and not voted"
    assert ballot.message()[83] == 0
    ballot.tickets.propose(0, np.array([True, False, True, True]))
    ballot.finished("load", 0, failed=False)
    ballot.finished("load", 2, failed=True)
    message = ballot.message()
    assert len(message) == 48 + 2 + 2 * 34
    assert message[:24] == b"\xff" * 24, "another rank's view"
    assert message[24:32] == (2).to_bytes(8, "little")
    assert message[48:50] == bytes([0b101, 0b11111011])
    assert message[50] == 0xFF, "opened, voted, wanted"
    assert bytes(a ^ b for a, b in zip(message[51:67], message[67:83], strict=True)) == b"\xff" * 16
    assert message[83] == 0b1101
    assert message[84] == 0b11111100, "neither opened nor voted, but not cancelled"
    assert message[85:117] == b"\xff" * 32


@pytest.mark.parametrize("kinds", [(), ("a",), ("a", "b", "c")])
def test_nothing_to_say_takes_as_many_bytes(kinds: tuple[str, ...]) -> None:
    shape = MessageShape(kinds=kinds)
    ballot = Ballot(shape, 0, 1)
    idle = ballot.message()
    for _ in range(20):
        ballot.tickets.propose(ballot.tickets.open(b"", 5000), np.ones(5001, np.bool_))
    assert len(idle) == len(ballot.message()) == message_bytes(shape, 1)


def test_only_what_has_changed_is_written_anew() -> None:
    """A rank with nothing new to say keeps the bytes of its last message; the tick of its view counts on."""
    ballot = Ballot(SMALL, 0, 1)
    for change in (
        lambda: ballot.tickets.open(b"x", 20),
        lambda: ballot.tickets.propose(0, np.arange(21) < 5),  # in the third window of 8
        lambda: None,
        lambda: ballot.tickets.open(b"y", 1),
        lambda: ballot.tickets.cancel(1),
        lambda: ballot.finished("load", 0, failed=True),
    ):
        before = ballot.tickets.slots()
        assert ballot.tickets.slots() is before
        change()
        kept = ballot.message()
        ballot.tickets._said = None
        for count in ballot._counts.values():
            count._said = None
        assert ballot.message()[24:] == kept[24:]
        ballot.conclude(kept, 0)


@given(st.lists(st.binary(min_size=4, max_size=4), min_size=1, max_size=5))
def test_equal_is_what_all_wrote_alike(written: list[bytes]) -> None:
    both = reduce_messages([with_complement(value) for value in written])
    assert are_equal(both) == (len(set(written)) == 1)


@given(st.lists(st.none() | st.binary(min_size=4, max_size=4), min_size=1, max_size=5))
def test_who_says_nothing_differs_from_nobody(written: list[bytes | None]) -> None:
    silent = neutral(8)
    both = reduce_messages([silent if value is None else with_complement(value) for value in written])
    assert are_equal(both) == (len({value for value in written if value is not None}) <= 1)


@given(st.lists(st.sets(st.integers(0, 20)), min_size=1, max_size=4))
def test_counts_of_finished_operations_are_the_minimum(ranks: list[set[int]]) -> None:
    ballots = [Ballot(MessageShape(completions=16), i, len(ranks)) for i in range(len(ranks))]
    for ballot, numbers in zip(ballots, ranks, strict=True):
        for number in numbers:
            ballot.finished("load", number, failed=number % 5 == 3)
    counts = [next(i for i in range(22) if i not in numbers) for numbers in ranks]
    applied: list[int] = []
    for tick in range(3):
        reduced = reduce_messages([ballot.message() for ballot in ballots])
        agreements = [ballot.conclude(reduced, tick) for ballot in ballots]
        assert all(agreement == agreements[0] for agreement in agreements)
        for finished in agreements[0].finished:
            assert finished.kind == "load" and len(finished.numbers) <= 16
            assert finished.failed == {number for number in finished.numbers if number % 5 == 3}
            applied += finished.numbers
    assert applied == list(range(min(counts)))


@settings(max_examples=200)
@given(st.integers(0, 40), st.data())
def test_lengths_are_the_intersection(page_count: int, data: st.DataObject) -> None:
    sets = data.draw(st.lists(st.sets(st.integers(1, max(1, page_count))), min_size=1, max_size=4))
    ballots = [Ballot(SMALL, i, len(sets)) for i in range(len(sets))]
    for ballot, lengths in zip(ballots, sets, strict=True):
        vote = np.zeros(page_count + 1, np.bool_)
        vote[[0, *(length for length in lengths if length <= page_count)]] = True
        ballot.tickets.propose(ballot.tickets.open(b"id", page_count), vote)
    common = set.intersection(*({0, *(length for length in lengths if length <= page_count)} for lengths in sets))
    for tick in range(page_count // 8 + 1):
        reduced = reduce_messages([ballot.message() for ballot in ballots])
        agreements = [ballot.conclude(reduced, tick) for ballot in ballots]
        if agreements[0].decisions:
            break
    [decision] = agreements[0].decisions
    agreed = set(np.flatnonzero(decision.lengths).tolist())
    assert decision.lengths.shape == (page_count + 1,)
    assert agreed <= common
    assert 0 in agreed
    assert max(agreed) == max(common)
    assert {length for length in common if length > page_count - 8 * (tick + 1)} <= agreed


def test_neutral_changes_nothing() -> None:
    message = Ballot(SMALL, 0, 1).message()
    assert reduce_messages([message, neutral(message_bytes(SMALL, 1))]) == message


def test_shapes_are_compared_before_anything_else() -> None:
    assert session_of(reduce_messages([opening_message(SMALL, 2, bytes(range(16))), opening_message(SMALL, 2, None)])) == bytes(
        range(16)
    )
    for other in (MessageShape(), MessageShape(slots=2, candidates=8, completions=8, kinds=("backup",))):
        messages = [opening_message(SMALL, 2, bytes(16)), opening_message(other, 2, None)]
        assert len(messages[0]) == len(messages[1])
        with pytest.raises(DivergenceError, match="different message shapes"):
            session_of(reduce_messages(messages))


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 0},
        {"slots": True},
        {"candidates": 12},
        {"completions": -8},
        {"kinds": ("a", "a")},
        {"kinds": (1,)},
        {"furthest": 0},
    ],
)
def test_a_shape_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        MessageShape(**wrong)  # type: ignore[arg-type]
