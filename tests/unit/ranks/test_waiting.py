"""More tickets than slots, tickets nobody waits for, and calls that make no sense, with one rank or a few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from rank_threads import RankThreads, reduce_messages

from unified_tree.controllers.ranks import Consensus, Finished, LocalConsensus, MessageShape
from unified_tree.controllers.ranks.ballot import Ballot
from unified_tree.terms.errors import ConfigurationError, RankError, RankTimeoutError, TicketError

NARROW = MessageShape(slots=2, candidates=8, completions=8)


def everything(page_count: int) -> np.ndarray:
    return np.ones(page_count + 1, np.bool_)


def test_what_has_no_slot_waits_in_ticket_order() -> None:
    consensus = LocalConsensus(NARROW)
    tickets = [consensus.open(b"%d" % i, i) for i in range(7)]
    for ticket in reversed(tickets[1:]):
        consensus.propose(ticket, everything(ticket))
    decided = [[decision.ticket for decision in consensus.tick().decisions] for _ in range(8)]
    assert decided == [[], [1], [2], [3], [4], [5], [6], []], "ticket 0 keeps its slot"
    consensus.propose(0, everything(0))
    assert consensus.tick().decisions == ()
    assert [decision.ticket for decision in consensus.tick().decisions] == [0]


def test_a_ticket_is_cancelled_by_one_rank_for_all() -> None:
    ranks = [Ballot(NARROW, rank, 2) for rank in range(2)]
    for tick in range(2):
        ranks[tick].tickets.open(b"x", 3)
        ranks[0].tickets.cancel(0)
        reduced = reduce_messages([ballot.message() for ballot in ranks])
        agreements = [ballot.conclude(reduced, tick) for ballot in ranks]
        assert [agreement.cancelled for agreement in agreements] == [(0,) if tick else ()] * 2, "not before all have opened it"
    for ballot in ranks:
        ballot.tickets.cancel(0)
        with pytest.raises(TicketError, match="agreed on already"):
            ballot.tickets.propose(0, everything(3))


def test_a_ticket_that_was_cancelled_takes_no_vote() -> None:
    consensus = LocalConsensus(NARROW)
    ticket = consensus.open(b"x", 2)
    consensus.propose(ticket, everything(2))
    consensus.cancel(ticket)
    consensus.propose(ticket, everything(2))
    assert [(a.decisions, a.cancelled) for a in (consensus.tick(), consensus.tick())] == [((), ()), ((), (0,))]


def test_a_vote_is_the_callers_no_more() -> None:
    consensus = LocalConsensus(NARROW)
    ticket = consensus.open(b"x", 2)
    lengths = everything(2)
    consensus.propose(ticket, lengths)
    lengths[:] = False
    consensus.tick()
    assert consensus.tick().decisions[0].lengths.all()


@pytest.mark.parametrize(
    "lengths",
    [
        np.ones(5, np.bool_), np.ones(0, np.bool_), np.zeros(4, np.bool_), np.ones(4, np.int64), np.ones((1, 4), np.bool_),
    ],
)  # fmt: skip
def test_what_is_no_vote_is_refused(lengths: np.ndarray) -> None:
    consensus = LocalConsensus(NARROW)
    ticket = consensus.open(b"x", 3)
    with pytest.raises(TicketError, match="wants a bool for each of 0 … 3 pages"):
        consensus.propose(ticket, lengths)
    consensus.propose(ticket, everything(3))
    with pytest.raises(TicketError, match="proposed for ticket 0 before"):
        consensus.propose(ticket, everything(3))


def test_tickets_and_numbers_that_are_none() -> None:
    consensus = LocalConsensus(NARROW)
    with pytest.raises(ConfigurationError):
        consensus.open(b"x", -1)
    for number in (0, -1, 10**30):
        with pytest.raises(TicketError, match="never opened"):
            consensus.cancel(number)
        with pytest.raises(TicketError, match="never opened"):
            consensus.propose(number, everything(1))
    with pytest.raises(TicketError, match="no kind 'nap'"):
        consensus.finished("nap", 0)
    with pytest.raises(TicketError, match="numbered from 0"):
        consensus.finished("load", 10**30)
    with pytest.raises(TicketError, match="before"):
        consensus.finished("load", -1)
    consensus.finished("load", 0)
    for _ in range(3):
        with pytest.raises(TicketError, match="operation 0 was counted"):
            consensus.finished("load", 0)
        consensus.tick()
    assert consensus.open(b"x", 0) == 0, "nothing of all this left a trace"


def test_numbers_may_be_numpys() -> None:
    consensus = LocalConsensus()
    ticket = consensus.open(b"x", np.int64(3))
    consensus.propose(np.int64(ticket), everything(3))
    for number in np.arange(150):
        consensus.finished("load", number, failed=np.bool_(number == 100))
    consensus.tick()
    agreement = consensus.tick()
    assert [decision.ticket for decision in agreement.decisions] == [0]
    assert agreement.finished == (Finished(kind="load", numbers=range(150), failed=frozenset({100})),)


def test_a_burst_of_completions_comes_in_order() -> None:
    consensus = LocalConsensus(NARROW)
    for number in reversed(range(20)):
        consensus.finished("load", number, failed=number in (3, 11))
    agreements = [consensus.tick() for _ in range(5)]
    parts = [(list(part.numbers), set(part.failed)) for agreement in agreements for part in agreement.finished]
    assert parts == [(list(range(8)), {3}), (list(range(8, 16)), {11}), (list(range(16, 20)), set())]


def test_a_rank_that_sends_nothing_ends_the_agreement() -> None:
    meeting = RankThreads(3)

    def script(consensus: Consensus, rank: int) -> str:
        consensus.tick()
        if rank == 1:
            meeting.late.add(1)
            with meeting.changed:
                meeting.changed.notify_all()
            return ""
        consensus.tick()
        with pytest.raises(RankTimeoutError, match="waited in vain"):
            consensus.tick()
        calls: list[Callable[[], object]] = [
            consensus.tick,
            lambda: consensus.open(b"", 0),
            lambda: consensus.finished("load", 0),
            lambda: consensus.cancel(0),
            lambda: consensus.record(b""),
            lambda: consensus.propose(0, everything(0)),
        ]
        for call in calls:
            with pytest.raises(RankError, match="ranks disagree since tick 2: rank"):
                call()
        return "noticed"

    assert meeting.run(script) == ["noticed", "", "noticed"]


def test_an_idle_rank_sends_as_much_as_a_busy_one() -> None:
    meeting = RankThreads(3)

    def script(consensus: Consensus, rank: int) -> None:
        for tick in range(12):
            if rank == 1:
                consensus.propose(consensus.open(b"%d" % tick, 500), everything(500))
                consensus.finished("backup", tick)
            consensus.tick()

    meeting.run(script)
    assert len(meeting.sizes) == 3 * 13, "one message a tick and rank, and the one before"
    assert len(set(meeting.sizes[3:])) == 1


def test_after_the_end_only_the_end() -> None:
    consensus = LocalConsensus()
    consensus.close()
    consensus.close()
    for call in (consensus.tick, lambda: consensus.open(b"", 0), lambda: consensus.record(b"")):
        with pytest.raises(RankError, match="closed"):
            call()
