"""The consensus over any reduction: one message per tick, even if there is nothing to report.

A tick finishes the reduction that the previous tick started, applies its result, and starts the next. The time between two
ticks, a model's step, hides the exchange. Each message is written after the previous result was applied, so all ranks write it
in the same state. Sending earlier would save nothing, and ranks could refer to different tickets.
"""

from __future__ import annotations

from collections.abc import Callable
from os import urandom
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from unified_tree.controllers.ranks.ballot import Ballot
from unified_tree.controllers.ranks.consensus import Agreement
from unified_tree.controllers.ranks.message import SESSION_BYTES, MessageShape, opening_message, session_of
from unified_tree.terms.errors import RankError

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.message import Message


class Reduction(Protocol):
    """Bitwise AND over the messages of all ranks, one after the other.

    The caller guarantees: `start` and `finish` alternate, `start` first, equally often on every rank, and all messages of a
    round have one size. The reduction guarantees: `finish` ends within the time-out. After either has raised, only `close` is
    called.
    """

    @property
    def rank(self) -> int:
        """This one, from 0."""
        ...

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    def start(self, message: Message) -> None:
        """Send a message. Never waits. Raises RankError if ranks are gone."""
        ...

    def finish(self) -> Message:
        """The AND of what all ranks sent; waits for them. Raises RankTimeoutError, and RankError if a rank is gone."""
        ...

    def close(self) -> None:
        """Abandon a pending reduction, without waiting. Idempotent."""
        ...


class SingleRankReduction:
    """The Reduction of a single rank, which never waits."""

    rank = 0
    ranks = 1

    def __init__(self) -> None:
        self._message: Message | None = None

    def start(self, message: Message) -> None:
        """See Reduction.start."""
        self._message = message

    def finish(self) -> Message:
        """See Reduction.finish."""
        assert self._message is not None, "nothing was started"
        message, self._message = self._message, None
        return message

    def close(self) -> None:
        """See Reduction.close."""
        self._message = None


@mypyc_attr(allow_interpreted_subclasses=True)
class TickedConsensus:
    """A Consensus whose messages go through a Reduction. The shape is exchanged first, before any tick.

    Args:
        shape: the same on all ranks, or the first tick raises DivergenceError on all of them.
        reduction: its own; `close` closes it.
        draw: returns so many random bytes, for the session; called once, by rank 0.
    """

    def __init__(self, shape: MessageShape, reduction: Reduction, draw: Callable[[int], bytes] = urandom) -> None:
        self._reduction = reduction
        self._ballot = Ballot(shape, reduction.rank, reduction.ranks)
        self._ticks = 0
        self._broken = ""
        self._closed = False
        self._session: bytes | None = None
        drawn = None if reduction.rank else draw(SESSION_BYTES)
        reduction.start(opening_message(shape, reduction.ranks, drawn))

    @property
    def session(self) -> bytes | None:
        """See Consensus.session."""
        return self._session

    def open(self, identity: bytes, page_count: Any) -> int:  # any integer, numpy's too, in compiled code
        """See Consensus.open."""
        self._check()
        return self._ballot.tickets.open(identity, page_count)

    def propose(self, ticket: Any, lengths: NDArray[np.bool_]) -> None:
        """See Consensus.propose."""
        self._check()
        self._ballot.tickets.propose(ticket, lengths)

    def cancel(self, ticket: Any) -> None:
        """See Consensus.cancel."""
        self._check()
        self._ballot.tickets.cancel(ticket)

    def finished(self, kind: str, number: Any, *, failed: Any = False) -> None:
        """See Consensus.finished."""
        self._check()
        self._ballot.finished(kind, number, failed=failed)

    def record(self, what: bytes) -> None:
        """See Consensus.record."""
        self._check()
        self._ballot.history.record(what)

    def tick(self) -> Agreement:
        """See Consensus.tick."""
        self._check()
        try:
            return self._tick()
        except RankError as error:
            self._broken = str(error)  # not the error, whose traceback would keep the process group and its connections
            raise

    def _tick(self) -> Agreement:
        reduced = self._reduction.finish()
        if self._ticks:
            agreement = self._ballot.conclude(reduced, self._ticks)
        else:
            self._session = session_of(reduced)
            agreement = Agreement(tick=0)
        self._ticks += 1
        self._reduction.start(self._ballot.message())
        return agreement

    def close(self) -> None:
        """See Consensus.close."""
        self._closed = True
        self._reduction.close()

    def _check(self) -> None:
        if self._closed:
            raise RankError("this consensus was closed")
        if self._broken:
            raise RankError(f"ranks disagree since tick {self._ticks}: {self._broken}")


class LocalConsensus(TickedConsensus):
    """A Consensus of a single rank. Everything is agreed on one tick later, in the same order and amounts as by several ranks
    that are never late. Cost: 0.7 µs for an idle tick, 40 with all slots voted in (compiled; `python -m benches.ranks`).

    >>> import numpy as np
    >>> consensus = LocalConsensus()
    >>> ticket = consensus.open(b"digest of a key chain", page_count=3)
    >>> consensus.propose(ticket, np.array([True, False, True, False]))
    >>> consensus.tick().decisions
    ()
    >>> [decision] = consensus.tick().decisions
    >>> decision.lengths
    array([ True, False,  True, False])
    """

    def __init__(self, shape: MessageShape | None = None, draw: Callable[[int], bytes] = urandom) -> None:
        super().__init__(shape or MessageShape(), SingleRankReduction(), draw)
