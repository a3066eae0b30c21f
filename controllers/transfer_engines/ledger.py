"""Which transfers are open, in which order, and how the last ones ended: the bookkeeping that every engine shares.

Open transfers stand in one queue a direction. A transfer that has ended waits there until those before it have, then its
completion goes to a list that `take` hands over whole; so order costs O(1) a transfer and an idle `take` nothing. The last
ones that were taken are kept without their page ids: a gate may be asked about a load that has long been polled, and then it
must know whether that came through. What has been forgotten is refused, never guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from unified_tree.arguments import integer
from unified_tree.controllers.transfer_engines.progress import Progress
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.effect import EffectKind
from unified_tree.errors import ConfigurationError, TransferError

REMEMBERED = 4096
"""Transfers whose outcome is known after their completion was taken, if nothing else is set; some hundred bytes each."""


class Ledger:
    """Every transfer of one engine, from submission until its completion is taken and a while after. Knows no lock.

    Args:
        remembered: how many transfers are known after that, one or more.

    Raises ConfigurationError for another number.
    """

    __slots__ = ("_order", "_recent", "_remembered", "completions", "open")

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = integer(remembered, "remembered", ConfigurationError, minimum=1)
        self.open: dict[int, Progress] = {}
        self.completions: list[Completion] = []
        self._order: dict[EffectKind, deque[Progress]] = {kind: deque() for kind in EffectKind}
        self._recent: dict[int, Progress] = {}

    def enter(self, transfers: Sequence[Transfer], layers: Callable[[Transfer], tuple[int, ...]]) -> list[Progress]:
        """Open transfers, `layers` telling the layers of a load; one without pages is over at once.

        Raises, with nothing changed, as `Transfer.check` and `layers` do, and TransferError for a ticket that was used before.
        """
        entered: dict[int, Progress] = {}
        for transfer in transfers:
            transfer.check()
            ticket, kind = transfer.ticket, transfer.kind
            if ticket in self.open or ticket in self._recent or ticket in entered:
                raise TransferError(f"transfer {ticket}: this ticket was used before; give every transfer a new one")
            layer_ids = layers(transfer)
            is_empty = not any(copy.source.size for copy in transfer.copies)
            stage_count = 0 if is_empty else len(layer_ids) if kind is EffectKind.LOAD else 1
            entered[ticket] = Progress(ticket, kind, () if is_empty else layer_ids, stage_count)
        for progress in entered.values():
            self.open[progress.ticket] = progress
            self._order[progress.kind].append(progress)
        for progress in entered.values():
            if progress.stage_count == 0:
                self.end(progress)
        return list(entered.values())

    def find(self, ticket: int) -> Progress:
        """A transfer that is open or ended lately. Raises TransferError for any other."""
        progress = self.open.get(ticket) or self._recent.get(ticket)
        if progress is None:
            raise TransferError(
                f"transfer {ticket} is not known: it was never submitted, or ended over {self._remembered} transfers ago"
            )
        return progress

    def has_landed(self, ticket: int, layer_id: int) -> bool:
        """Whether a gate may open. Raises TransferError where it never will; see TransferEngine.wait_layer."""
        progress = self.find(ticket)
        if progress.kind is EffectKind.BACKUP:
            raise TransferError(f"transfer {ticket} is a backup; only loads have layers to wait for")
        if not progress.is_cancelled and progress.landed >= progress.stages_through(layer_id):
            return True
        if progress.error is not None:
            raise TransferError(f"transfer {ticket}: layer {layer_id} will not come: {progress.error}")
        return False

    def end(self, progress: Progress) -> None:
        """Nothing of this transfer moves any more; its error, if any, stands. Must not have ended before."""
        assert not progress.has_ended and not progress.running, progress
        progress.has_ended = True
        order = self._order[progress.kind]
        while order and order[0].has_ended:
            first = order.popleft()
            self.completions.append(Completion(ticket=first.ticket, error=first.error))
            self._recent[first.ticket] = self.open.pop(first.ticket)

    def pop_completions(self) -> list[Completion]:
        """The completions since the last call, to the caller. Cost: O(those)."""
        taken, self.completions = self.completions, []
        while len(self._recent) > self._remembered:
            del self._recent[next(iter(self._recent))]
        return taken
