"""The protocol between a cache and the other ranks, which hold shards of the same pages.

Ranks make the same calls in the same order, but their stores and copies answer at different times and with different results.
Every decision that depends on such an answer is voted on here, and all ranks act on the result in the same tick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """What all ranks can restore of one ticket.

    Attributes:
        ticket: which one.
        lengths: shape [page_count + 1], bool: index n tells whether every rank can restore the first n pages; index 0 is always
            true. The longest length is exact. Shorter ones may be missing, but none is wrong.
    """

    ticket: int
    lengths: NDArray[np.bool_]


class Finished(NamedTuple):
    """Operations of one kind that every rank has finished since the last agreement.

    Attributes:
        kind: one of the message shape's.
        numbers: consecutive, in the order in which they were started.
        failed: those of them that failed on one rank or more: on every rank they count as failed.
    """

    kind: str
    numbers: range
    failed: frozenset[int] = frozenset()


class Agreement(NamedTuple):
    """What all ranks agreed on by their messages of one tick; the same on every rank.

    Attributes:
        tick: the tick that returned it, counted from 0. Calls before tick t are agreed on in tick t + 1 at the earliest.
        decisions: tickets that every rank has proposed lengths for, by ticket.
        cancelled: tickets that one rank or more cancelled, ascending.
        finished: by kind, in the shape's order; kinds without newly finished operations are left out.
    """

    tick: int
    decisions: tuple[Decision, ...] = ()
    cancelled: tuple[int, ...] = ()
    finished: tuple[Finished, ...] = ()


class Consensus(Protocol):
    """One rank's side of the consensus.

    The caller guarantees: one thread makes all calls; every rank calls `tick` equally often, even when idle; every rank opens
    the same tickets in the same order, and starts the operations of a kind in the same order. The time between ticks may
    differ. The consensus guarantees: the n-th `tick` returns the same on every rank where it returns; no call waits longer than
    the time-out, even if other ranks fail. A ticket without a rank's vote keeps its slot, and so delays later ones, until a
    rank cancels it.

    `tick` raises RankTimeoutError for a rank that did not send in time, DivergenceError for ranks that do not do the same, and
    RankError for one that is gone. If it raises on one rank, it raises on the others in the same tick or the next one. From
    then on, and after `close`, all calls but `close` raise RankError: the ranks are not in the same state any more, and must be
    restarted together.
    """

    @property
    def session(self) -> bytes | None:
        """A random id of this group of ranks, 16 bytes: the same on all of them, and new whenever the ranks are started. None
        before the first tick has returned.
        """
        ...

    def open(self, identity: bytes, page_count: int) -> int:
        """Open the next ticket, counted from 0. Lengths of 0 … page_count pages can be proposed for it.

        Args:
            identity: the subject of the ticket, such as the digest of a key chain. It must be the same on all ranks; otherwise
                all of them raise DivergenceError.
        """
        ...

    def propose(self, ticket: int, lengths: NDArray[np.bool_]) -> None:
        """Vote for the lengths this rank can restore, shape [at most page_count + 1], bool, index 0 true; once per ticket.

        Lengths beyond the end of the array cannot be restored. No effect for a ticket that was cancelled here. Raises
        TicketError for a ticket that is not open here, a second proposal, and any other array.
        """
        ...

    def cancel(self, ticket: int) -> None:
        """Cancel the ticket on all ranks, unless it is decided first, which may have happened already.

        Raises TicketError for a ticket that was never opened here.
        """
        ...

    def finished(self, kind: str, number: int, *, failed: bool = False) -> None:
        """Report that this rank has finished an operation of a kind, in any order; numbers count from 0 in the order of
        starting.

        Raises TicketError for a kind that is not in the shape, and for a number that was reported before or is impossible.
        """
        ...

    def record(self, what: bytes) -> None:
        """Add an event, such as where a lease stands, to this rank's history. All ranks compare them in every tick."""
        ...

    def tick(self) -> Agreement:
        """Wait for the messages of the tick before, send the next one, and return what was agreed on.

        Blocks until all ranks have sent those of the tick before, which is usually the case already, or until the time-out.
        """
        ...

    def close(self) -> None:
        """Send nothing more, without waiting for other ranks. Idempotent."""
        ...
