"""The seam between a cache and the other ranks that hold shards of the same pages.

Ranks do the same things in the same order (law 6), but their stores and copies answer at different times and with different
results. Whatever depends on such an answer goes through here first: it becomes a vote, and every rank acts on what all voted,
in the same tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """What all ranks can restore of one ticket.

    Attributes:
        ticket: which one.
        lengths: shape [page_count + 1], bool: index n says whether every rank can restore the first n pages; index 0 is
            always true. The longest is exact. Of shorter ones some may be left out, never one put in.
    """

    ticket: int
    lengths: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Operations of one kind that every rank has finished since the last agreement.

    Attributes:
        kind: one of the message shape's.
        numbers: consecutive, in the order in which they were begun.
        failed: those of them that failed on one rank or more: on every rank they count as failed.
    """

    kind: str
    numbers: range
    failed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What all ranks agreed on by their messages of one tick; the same on every rank.

    Attributes:
        tick: the tick that returned it, counted from 0. What was said before tick t is agreed on in tick t + 1, earliest.
        decisions: tickets that every rank has proposed lengths for, by ticket.
        cancelled: tickets that one rank or more cancelled, ascending.
        finished: by kind, in the shape's order; kinds of which nothing new was finished are left out.
    """

    tick: int
    decisions: tuple[Decision, ...] = ()
    cancelled: tuple[int, ...] = ()
    finished: tuple[Finished, ...] = ()


class Consensus(Protocol):
    """One rank's end of the agreement.

    The caller guarantees: one thread makes all calls; every rank calls `tick` equally often, also when it has nothing to do;
    every rank opens the same tickets in the same order, and begins the operations of a kind in the same order. When, between
    ticks, may differ. The consensus guarantees: the n-th `tick` returns the same on every rank where it returns; nobody waits
    longer than the time-out, whatever became of the others. A ticket that a rank does not vote on keeps its slot, and so delays
    later ones, until somebody cancels it.

    `tick` raises RankTimeoutError for a rank that did not send in time, DivergenceError for ranks that do not do the same,
    and RankError for one that is gone. If it raises on one rank, it raises on the others in the same tick or the next one. From
    then on, and after `close`, all but `close` raise RankError: the ranks are not in the same state any more, and must be
    started anew together.
    """

    @property
    def session(self) -> bytes | None:
        """What these ranks are called together: 16 bytes that are drawn anew whenever ranks are started; the same on all of
        them, and nobody else's. None before the first tick has returned."""
        ...

    def open(self, identity: bytes, page_count: int) -> int:
        """A new ticket: they are counted from 0. Lengths of 0 … page_count pages can be proposed for it.

        Args:
            identity: says what the ticket is about, such as the digest of a key chain; it must be the same on all ranks, and
                if it is not, all of them raise DivergenceError.
        """
        ...

    def propose(self, ticket: int, lengths: NDArray[np.bool_]) -> None:
        """Vote for the lengths this rank can restore, shape [at most page_count + 1], bool, index 0 true; once a ticket.

        What is beyond a shorter array cannot be restored. For a ticket that was cancelled here nothing happens. Raises
        TicketError for a ticket that is not open here, a second proposal and an array that is not as above.
        """
        ...

    def cancel(self, ticket: int) -> None:
        """Have the ticket cancelled on all ranks, unless it is decided first, which it may be already.

        Raises TicketError for a ticket that was never opened here.
        """
        ...

    def finished(self, kind: str, number: int, *, failed: bool = False) -> None:
        """Say that this rank has finished the number-th operation of a kind, counted from 0 as they were begun, in any order.

        Raises TicketError for a kind that is not the shape's, and a number that was counted before or cannot be.
        """
        ...

    def record(self, what: bytes) -> None:
        """Add to this rank's history, which all ranks compare in every tick: what was done, such as victims and page ids."""
        ...

    def tick(self) -> Agreement:
        """Wait for the messages of the tick before, send the next one, and return what was agreed on.

        Blocks until all ranks have sent those of the tick before, which they mostly have, and for at most the time-out.
        """
        ...

    def close(self) -> None:
        """Send nothing more and wait for nobody; twice is as good as once."""
        ...
