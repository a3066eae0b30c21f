"""Agreement between ranks: controllers act on the results of copies and stores at once (a single rank), or when all ranks have
them.

An operation ends for the cache only when it has ended on every rank, and in the order of starting. A length is usable only if
every rank can restore it. So all ranks change their trees by the same calls in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

import numpy as np
from mypy_extensions import mypyc_attr

from unified_tree.terms.errors import RankError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.ranks import Consensus

Ended = Callable[[Any, str | None], None]
"""Takes an operation, and why it failed, None if it did not."""
Decided = Callable[["NDArray[np.bool_]"], None]
"""Takes the lengths that can be restored, shape [pages + 1]."""
MOST_RECORDED = 128
"""Decisions that are told to the consensus together at most: ranks without a host tier record, and never tick."""


class RankAgreement(Protocol):
    """The protocol between a cache's controllers and the other ranks."""

    @property
    def is_single_rank(self) -> bool:
        """Whether this is the only rank, so that a decision may depend on its clock."""
        ...

    @property
    def session(self) -> str | None:
        """A unique id of this group of ranks: the same on all of them, and new whenever they are started. None before the first
        exchange; every rank sees it from the same step on.
        """
        ...

    def begin(self, kind: str) -> int:
        """Start an operation, on all ranks alike; returns its number among those of its kind."""
        ...

    def end(self, kind: str, number: int, error: str | None, then: Ended, operation: Any) -> None:
        """Report the end of an operation here; `then` is called with it when it has ended on all ranks, with an error if it
        failed on any.
        """
        ...

    def open_ticket(self, identity: str, page_count: int) -> int:
        """Open a ticket on all ranks, for a vote on lengths of up to `page_count` pages. Raises RankError, with nothing
        changed, if ranks are gone.
        """
        ...

    def propose(self, ticket: int, lengths: NDArray[np.bool_], then: Decided) -> None:
        """Vote for the lengths that this rank can restore; `then` is called with those that all can."""
        ...

    def cancel(self, ticket: int) -> None:
        """Cancel a ticket, on all ranks."""
        ...

    def record(self, what: str) -> None:
        """Record a decision that all ranks must have made alike; they compare it."""
        ...

    def tick(self) -> None:
        """Once per step: exchange messages and make due callbacks. Raises RankError if ranks are gone or have diverged."""
        ...

    def close(self) -> None:
        """Stop exchanging messages."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)  # as tests do, to stand in for other ranks
class SingleRank:
    """The RankAgreement of a single rank: everything is agreed on at once.

    Args:
        session: see RankAgreement.session; random if not given.
    """

    is_single_rank = True

    def __init__(self, session: str | None = None) -> None:
        self.session: str | None = uuid4().hex if session is None else session

    def begin(self, kind: str) -> int:
        """See RankAgreement.begin."""
        del kind
        return 0

    def end(self, kind: str, number: int, error: str | None, then: Ended, operation: Any) -> None:
        """See RankAgreement.end."""
        del kind, number
        then(operation, error)

    def open_ticket(self, identity: str, page_count: int) -> int:
        """See RankAgreement.open_ticket."""
        del identity, page_count
        return 0

    def propose(self, ticket: int, lengths: NDArray[np.bool_], then: Decided) -> None:
        """See RankAgreement.propose."""
        del ticket
        then(lengths)

    def cancel(self, ticket: int) -> None:
        """See RankAgreement.cancel."""

    def record(self, what: str) -> None:
        """See RankAgreement.record."""

    def tick(self) -> None:
        """See RankAgreement.tick."""

    def close(self) -> None:
        """See RankAgreement.close."""


CONSENSUS_METHODS: Final = ("open", "propose", "cancel", "finished", "record", "tick", "close")
"""Those of a Consensus that are called for each cache."""


class MultiRank:
    """A RankAgreement by consensus. If ranks are gone, only calls that start something and the next tick raise RankError; calls
    that end or cancel are ignored, so that cleanup always works.

    Args:
        consensus: this rank's Consensus; closed with the cache.
    """

    is_single_rank = False

    def __init__(self, consensus: Consensus) -> None:
        self._consensus = consensus
        self._begun: dict[str, int] = {}
        self._ended: dict[str, dict[int, tuple[str | None, Ended, Any]]] = {}
        self._votes: dict[int, Decided] = {}
        self._recorded: list[str] = []

    @property
    def session(self) -> str | None:
        """See RankAgreement.session."""
        session = self._consensus.session
        return None if session is None else session.hex()

    def begin(self, kind: str) -> int:
        """See RankAgreement.begin."""
        number = self._begun.get(kind, 0)
        self._begun[kind] = number + 1
        return number

    def end(self, kind: str, number: int, error: str | None, then: Ended, operation: Any) -> None:
        """See RankAgreement.end."""
        ended = self._ended.get(kind)
        if ended is None:
            ended = self._ended[kind] = {}
        ended[number] = (error, then, operation)
        try:  # not `suppress`, which takes as long as the rest
            self._consensus.finished(kind, number, failed=error is not None)
        except RankError:
            return

    def open_ticket(self, identity: str, page_count: int) -> int:
        """See RankAgreement.open_ticket."""
        return self._consensus.open(identity.encode("utf-8", "surrogatepass"), page_count)

    def propose(self, ticket: int, lengths: NDArray[np.bool_], then: Decided) -> None:
        """See RankAgreement.propose."""
        given = lengths.copy()
        given[0] = True
        self._votes[ticket] = then
        with suppress(RankError):
            self._consensus.propose(ticket, given)

    def cancel(self, ticket: int) -> None:
        """See RankAgreement.cancel."""
        self._votes.pop(ticket, None)
        with suppress(RankError):
            self._consensus.cancel(ticket)

    def record(self, what: str) -> None:
        """See RankAgreement.record."""
        self._recorded.append(what)
        if len(self._recorded) >= MOST_RECORDED:
            self._tell_recorded()

    def _tell_recorded(self) -> None:
        """One event of all of them: written as a list is, in which no two of them run together."""
        recorded, self._recorded = self._recorded, []
        with suppress(RankError):
            self._consensus.record(repr(recorded).encode())

    def tick(self) -> None:
        """See RankAgreement.tick."""
        if self._recorded:
            self._tell_recorded()
        agreement = self._consensus.tick()
        for finished in agreement.finished:
            ended = self._ended[finished.kind]
            for number in finished.numbers:
                error, then, operation = ended.pop(number)
                then(operation, (error or "failed on another rank") if number in finished.failed else None)
        for decision in agreement.decisions:
            then_decided = self._votes.pop(decision.ticket, None)
            if then_decided is not None:
                then_decided(decision.lengths.copy())

    def close(self) -> None:
        """See RankAgreement.close."""
        self._consensus.close()
