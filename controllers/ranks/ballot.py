"""What one rank puts into its messages, and what it concludes from the reduced ones. Pure bookkeeping."""

from __future__ import annotations

from typing import Any

from unified_tree.controllers.ranks.completions import Completions
from unified_tree.controllers.ranks.consensus import Agreement
from unified_tree.controllers.ranks.history import History
from unified_tree.controllers.ranks.message import VIEW_BYTES, Message, count_bytes
from unified_tree.controllers.ranks.message_shape import MessageShape
from unified_tree.controllers.ranks.tickets import Tickets
from unified_tree.terms.errors import TicketError
from unified_tree.terms.results import record


class Ballot:
    """One rank's state. `message` and `conclude` are called in turn, and all ranks conclude the same from the same messages.

    Args:
        shape: the same on all ranks.
        rank: this one.
        ranks: how many there are.

    Attributes:
        tickets: see Consensus.open, propose and cancel.
        history: see Consensus.record.
    """

    def __init__(self, shape: MessageShape, rank: int, ranks: int) -> None:
        self.tickets = Tickets(shape)
        self.history = History(rank, ranks)
        self._counts = {kind: Completions(kind, shape.completions, shape.furthest) for kind in shape.kinds}
        self._count_bytes = count_bytes(shape)
        self._views_end = ranks * VIEW_BYTES
        self._counts_end = self._views_end + len(shape.kinds) * self._count_bytes
        self._idle = self._said()

    def finished(self, kind: str, number: Any, *, failed: Any) -> None:
        """See Consensus.finished."""
        count = self._counts.get(kind)
        if count is None:
            raise TicketError(f"no kind {kind!r} of operations is counted here, only {', '.join(self._counts) or 'none'}")
        count.finish(number, failed=failed)

    def message(self) -> Message:
        """This rank's next message. Cost: one copy of it, and of what has changed since the last one as many steps as bytes."""
        return self.history.views() + self._said()

    def _said(self) -> bytes:
        """All of it but the views."""
        return b"".join([count.count() for count in self._counts.values()]) + self.tickets.slots()

    def conclude(self, reduced: Message, tick: int) -> Agreement:
        """Apply the AND of all ranks' messages. Raises DivergenceError. Cost: one comparison of it, and O(what it reports)."""
        self.history.check(reduced[: self._views_end], tick)
        if reduced[self._views_end :] == self._idle:
            return record(Agreement, (tick, (), (), ()))
        decisions, cancelled = self.tickets.read(reduced[self._counts_end :], tick)
        begin = self._views_end
        counts = []
        for count in self._counts.values():
            counts.append(count.read(reduced[begin : begin + self._count_bytes]))
            begin += self._count_bytes
        finished = tuple([found for found in counts if found is not None])
        return record(Agreement, (tick, tuple(decisions), tuple(cancelled), finished))
