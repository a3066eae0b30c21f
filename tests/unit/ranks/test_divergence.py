"""Ranks that do not do the same are found out, all of them in the same tick, and told who is alone."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from rank_threads import reduce_messages

from unified_tree.controllers.ranks import Consensus, MessageShape
from unified_tree.controllers.ranks.ballot import Ballot
from unified_tree.controllers.ranks.rank_agreement import MOST_RECORDED, MultiRank
from unified_tree.terms.errors import DivergenceError

SHAPE = MessageShape(slots=2, candidates=8, completions=8)


def exchanged(ballots: list[Ballot], tick: int = 3) -> list[object]:
    reduced = reduce_messages([ballot.message() for ballot in ballots])
    outcomes: list[object] = []
    for ballot in ballots:
        try:
            outcomes.append(ballot.conclude(reduced, tick))
        except DivergenceError as error:
            outcomes.append(str(error))
    return outcomes


def ballots(count: int) -> list[Ballot]:
    return [Ballot(SHAPE, rank, count) for rank in range(count)]


def test_another_history_names_the_rank() -> None:
    ranks = ballots(4)
    for i, ballot in enumerate(ranks):
        ballot.history.record(b"evicted 5" if i != 2 else b"evicted 6")
    outcomes = exchanged(ranks)
    assert len(set(outcomes)) == 1
    assert "the history of ranks [2], as sent in tick 0, differs from that of [0, 1, 3]" in str(outcomes[0])


def test_pieces_of_a_history_are_told_apart() -> None:
    ranks = ballots(2)
    ranks[0].history.record(b"ab")
    ranks[0].history.record(b"c")
    ranks[1].history.record(b"a")
    ranks[1].history.record(b"bc")
    assert "differs" in str(exchanged(ranks)[0])


def test_an_old_difference_is_not_forgotten() -> None:
    ranks = ballots(2)
    ranks[0].history.record(b"once")
    for ballot in ranks:
        ballot.history.record(b"and the same ever after")
    assert "differs" in str(exchanged(ranks)[0])


def test_another_tick_is_named() -> None:
    ranks = ballots(3)
    ranks[1].message()
    outcomes = exchanged(ranks)
    assert len(set(outcomes)) == 1
    assert "tick 3: messages of ranks [1] and [0, 2] are not of the same tick but of [0, 1]" in str(outcomes[0])


@pytest.mark.parametrize(("identity", "page_count"), [(b"other", 4), (b"one", 5)])
def test_another_request_under_the_same_ticket(identity: bytes, page_count: int) -> None:
    ranks = ballots(3)
    for ballot in ranks:
        ballot.tickets.open(b"zero", 1)
    ranks[0].tickets.open(b"one", 4)
    assert not isinstance(exchanged(ranks)[0], str), "one rank may be first to open"
    ranks[2].tickets.open(identity, page_count)
    outcomes = exchanged(ranks, tick=9)
    assert len(set(outcomes)) == 1
    assert "tick 9: ticket 1 is about another request" in str(outcomes[0])


def test_swapped_requests_are_never_decided() -> None:
    first, second = ballots(2)
    for ballot, order in ((first, (b"a", b"b")), (second, (b"b", b"a"))):
        for identity in order:
            ballot.tickets.propose(ballot.tickets.open(identity, 2), np.array([True, True, True]))
    assert all("ticket 0" in str(outcome) for outcome in exchanged([first, second]))


class Told:
    """A consensus that keeps what it is told; see Consensus.record."""

    def __init__(self) -> None:
        self.events: list[bytes] = []

    def record(self, what: bytes) -> None:
        """See Consensus.record."""
        self.events.append(what)


def test_decisions_are_told_together_and_do_not_pile_up_without_a_tick() -> None:
    """Ranks without a host tier record each request, and never tick."""
    told = Told()
    ranks = MultiRank(cast(Consensus, told))
    for number in range(10 * MOST_RECORDED + 1):
        ranks.record(f"decision {number}")
    assert len(told.events) == 10
    assert len({*told.events}) == 10


def test_decisions_told_together_do_not_run_together() -> None:
    told: list[bytes] = []
    for decisions in (["a', 'b"], ["a", "b"], ["ab"], ["a", "b", ""]):
        consensus = Told()
        ranks = MultiRank(cast(Consensus, consensus))
        for what in (*decisions, *["same"] * (MOST_RECORDED - len(decisions))):
            ranks.record(what)
        told += consensus.events
    assert len(set(told)) == 4
