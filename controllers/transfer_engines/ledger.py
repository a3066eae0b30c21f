"""The bookkeeping that every engine shares: the open transfers in order, and the outcomes of the last ones.

There is one queue of open transfers per direction. An ended transfer waits in it until those before it have ended; then its
completion goes to the list that `pop_completions` returns. So ordering costs O(1) a transfer, and an idle call nothing. The
last popped transfers are remembered without their page ids, because `wait_layer` may ask for a load that was polled long ago. A
forgotten ticket raises an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from unified_tree.arguments import integer
from unified_tree.controllers.transfer_engines.copy_checks import check_copies
from unified_tree.controllers.transfer_engines.progress import Progress
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.effect import EffectKind
from unified_tree.errors import ConfigurationError, TransferError
from unified_tree.receipt import record

LOAD: Final = EffectKind.LOAD
REMEMBERED = 4096
"""Transfers whose outcome is known after their completion was taken, if nothing else is set; some hundred bytes each."""


class Ledger:
    """Every transfer of one engine, from submission until some time after its completion was popped. Not thread-safe.

    Args:
        remembered: how many transfers are known after that, one or more.

    Raises ConfigurationError for another number.
    """

    __slots__ = ("_backups", "_loads", "_recent", "_recent_tickets", "_remembered", "completions", "open")

    def __init__(self, remembered: Any = REMEMBERED) -> None:  # unchecked: compiled code would refuse in its own words
        self._remembered: int = integer(remembered, "remembered", ConfigurationError, minimum=1)
        self.open: dict[int, Progress] = {}
        self.completions: list[Completion] = []
        self._loads: deque[Progress] = deque()
        self._backups: deque[Progress] = deque()
        self._recent: dict[int, Progress] = {}
        self._recent_tickets: deque[int] = deque()  # of `_recent`, the oldest first

    def enter(
        self, transfers: Sequence[Transfer], layers: Callable[[Transfer], tuple[int, ...]] | None = None
    ) -> list[Progress]:
        """Open transfers; `layers` returns the layers of a load, None for layer 0 alone. One without pages ends at once.

        Raises, with nothing changed, as `Transfer.check` and `layers` do, and TransferError for a ticket that was used before.
        """
        begun: list[Progress] = []
        tickets: set[int] = set()
        for transfer in transfers:
            ticket, kind, copies = transfer
            check_copies(ticket, copies)
            if ticket in self.open or ticket in self._recent or ticket in tickets:
                raise TransferError(f"transfer {ticket}: this ticket was used before; give every transfer a new one")
            layer_ids = layers(transfer) if layers is not None else (0,)
            is_empty = True
            for _, source, _ in copies:
                is_empty = is_empty and not len(source)
            stage_count = 0 if is_empty else len(layer_ids) if kind is LOAD else 1
            tickets.add(ticket)
            begun.append(Progress(ticket, kind, () if is_empty else layer_ids, stage_count))
        for progress in begun:
            self.open[progress.ticket] = progress
            (self._loads if progress.kind is LOAD else self._backups).append(progress)
        for progress in begun:
            if progress.stage_count == 0:
                self.end(progress)
        return begun

    def find(self, ticket: int) -> Progress:
        """A transfer that is open or ended lately. Raises TransferError for any other."""
        progress = self.open.get(ticket) or self._recent.get(ticket)
        if progress is None:
            raise TransferError(
                f"transfer {ticket} is not known: it was never submitted, or ended over {self._remembered} transfers ago"
            )
        return progress

    def has_landed(self, ticket: int, layer_id: int) -> bool:
        """Whether all layers up to this one have landed. Raises TransferError if they never will; see
        TransferEngine.wait_layer.
        """
        progress = self.find(ticket)
        if progress.kind is not LOAD:
            raise TransferError(f"transfer {ticket} is a backup; only loads have layers to wait for")
        if not progress.is_cancelled and progress.landed >= progress.stages_through(layer_id):
            return True
        if progress.error is not None:
            raise TransferError(f"transfer {ticket}: layer {layer_id} will not come: {progress.error}")
        return False

    def end(self, progress: Progress) -> None:
        """End a transfer, of which nothing moves any more. Must not have ended before."""
        assert not progress.has_ended and not progress.running, progress
        progress.has_ended = True
        order = self._loads if progress.kind is LOAD else self._backups
        while order and order[0].has_ended:
            first = order.popleft()
            self.completions.append(record(Completion, (first.ticket, first.error)))
            del self.open[first.ticket]
            self._recent[first.ticket] = first
            self._recent_tickets.append(first.ticket)

    def land_all(self) -> None:
        """End all open transfers, all of which have been copied."""
        for progress in list(self.open.values()):
            if not progress.has_ended:
                progress.landed = progress.stage_count
                self.end(progress)

    def pop_completions(self) -> list[Completion]:
        """The completions since the last call. Cost: O(completions)."""
        taken, self.completions = self.completions, []
        while len(self._recent) > self._remembered:
            del self._recent[self._recent_tickets.popleft()]
        return taken
