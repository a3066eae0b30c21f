"""What one rank puts into its messages, and what it concludes from the reduced ones. Pure bookkeeping."""

from __future__ import annotations

from unified_tree.controllers.ranks.completions import Completions
from unified_tree.controllers.ranks.consensus import Agreement
from unified_tree.controllers.ranks.history import History
from unified_tree.controllers.ranks.message import Message, fields, message_dtype, neutral
from unified_tree.controllers.ranks.message_shape import MessageShape
from unified_tree.controllers.ranks.tickets import Tickets
from unified_tree.errors import TicketError


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
        self.history = History(rank)
        self._counts = {kind: Completions(kind, shape.completions, shape.furthest) for kind in shape.kinds}
        self._dtype = message_dtype(shape, ranks)

    def finished(self, kind: str, number: int, *, failed: bool) -> None:
        """See Consensus.finished."""
        count = self._counts.get(kind)
        if count is None:
            raise TicketError(f"no kind {kind!r} of operations is counted here, only {', '.join(self._counts) or 'none'}")
        count.finish(number, failed=failed)

    def message(self) -> Message:
        """This rank's next message, in new memory. Cost: O(message bytes)."""
        message = neutral(self._dtype)
        [record] = fields(message, self._dtype)
        self.history.write(record["views"])
        for i, count in enumerate(self._counts.values()):
            count.write(record["counts"][i])
        self.tickets.write(record["slots"])
        return message

    def conclude(self, reduced: Message, tick: int) -> Agreement:
        """Apply the AND of all ranks' messages. Raises DivergenceError. Cost: O(message bytes)."""
        [record] = fields(reduced, self._dtype)
        self.history.check(record["views"], tick)
        decisions, cancelled = self.tickets.read(record["slots"], tick)
        counts = [count.read(record["counts"][i]) for i, count in enumerate(self._counts.values())]
        return Agreement(
            tick=tick,
            decisions=tuple(decisions),
            cancelled=tuple(cancelled),
            finished=tuple(finished for finished in counts if finished is not None),
        )
