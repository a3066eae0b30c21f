"""The bookkeeping that every engine shares: the open transfers in order, and the outcomes of the last ones.

There is one queue of open transfers per direction. An ended transfer waits in it until those before it have ended; then its
completion goes to the list that `pop_completions` returns. So ordering costs O(1) a transfer, and an idle call nothing. The
last popped transfers are remembered without their page ids, because `wait_layer` may ask for a load that was polled long ago. A
forgotten ticket raises an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from unified_tree.controllers.transfer_engines.copy_checks import check_copies
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.inputs.arguments import integer
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.errors import ConfigurationError, TransferError
from unified_tree.terms.results import record


class Progress:
    """A transfer without its page ids, so that it can be remembered after its end.

    It has *stages* that land one after the other: a load one for each layer, a backup a single one. Once it has an error it is
    *dead*: no more copies of it start, and it ends when none is running.

    Attributes:
        ticket, kind: of the transfer.
        layer_ids: of a load, the model layers that any of its components keeps, ascending.
        stage_count: stages until it is done; 0 if there is nothing to copy.
        number: among all that were ever submitted.
        landed: stages that have landed.
        running: copies that are under way and not accounted for.
        error: what went wrong first.
        is_cancelled: whether the caller cancelled it; then `wait_layer` raises.
        has_ended: whether nothing of it moves or will move.
        is_due: whether its completion is due: those before it have ended too.
    """

    __slots__ = (
        "error",
        "has_ended",
        "is_cancelled",
        "is_due",
        "kind",
        "landed",
        "layer_ids",
        "number",
        "running",
        "stage_count",
        "ticket",
    )

    def __init__(self, ticket: int, kind: EffectKind, layer_ids: tuple[int, ...], stage_count: int, number: int) -> None:
        self.ticket = ticket
        self.kind = kind
        self.layer_ids = layer_ids
        self.stage_count = stage_count
        self.number = number
        self.landed = 0
        self.running = 0
        self.error: str | None = None
        self.is_cancelled = False
        self.has_ended = False
        self.is_due = False

    def stages_through(self, layer_id: int) -> int:
        """How many stages of a load must have landed before a model layer may run. Cost: O(log layers)."""
        return bisect_right(self.layer_ids, layer_id)

    def land(self, through: int | None) -> None:
        """Mark a load's stages up to a model layer as landed, or, for None, a backup."""
        self.landed = self.stage_count if through is None else self.stages_through(through)

    def fail(self, error: str) -> None:
        """Note what went wrong, if nothing did before."""
        if self.error is None:
            self.error = error


LOAD: Final = EffectKind.LOAD
FIRST_LAYER: Final = (0,)
REMEMBERED = 4096
"""Transfers whose outcome is known after their completion was taken, if nothing else is set; some hundred bytes each."""


class Ledger:
    """Every transfer of one engine, from submission until some time after its completion was popped. Not thread-safe.

    Args:
        remembered: how many transfers are known after that, one or more.

    Raises ConfigurationError for another number.
    """

    __slots__ = ("_backups", "_completions", "_known", "_loads", "_popped", "_remembered", "_submitted")

    def __init__(self, remembered: Any = REMEMBERED) -> None:  # unchecked: compiled code would refuse in its own words
        self._remembered: int = integer(remembered, "remembered", ConfigurationError, minimum=1)
        self._submitted = 0
        self._known: dict[int, Progress] = {}
        self._loads: deque[Progress] = deque()
        self._backups: deque[Progress] = deque()
        self._completions: list[Completion] = []
        self._popped: deque[Progress] = deque()  # whose completions are due or were popped, the oldest first

    @property
    def has_open(self) -> bool:
        """Whether the completion of some transfer is not due."""
        return bool(self._loads) or bool(self._backups)

    @property
    def is_idle(self) -> bool:
        """Whether no transfer is open, and no completion is to be popped."""
        return not (self._backups or self._loads or self._completions)

    def open(self) -> list[Progress]:
        """The transfers whose completions are not due, in the order of submission. Cost: O(n log n) of those."""
        if not self._loads:
            return list(self._backups)
        return sorted([*self._loads, *self._backups], key=_number)

    def moving(self, ticket: int) -> Progress | None:
        """A transfer that has not ended; None if it has, or is not known."""
        progress = self._known.get(ticket)
        return None if progress is None or progress.has_ended else progress

    def enter(
        self, transfers: Sequence[Transfer], layers: Callable[[Transfer], tuple[int, ...]] | None = None
    ) -> list[Progress]:
        """Open transfers; `layers` returns the layers of a load, None for layer 0 alone. One without pages ends at once.

        Raises, with nothing changed, as `Transfer.check` and `layers` do, and TransferError for a ticket that was used before.
        """
        begun: list[Progress] = []
        known = self._known
        try:
            for transfer in transfers:
                ticket, kind, copies = transfer
                page_count = check_copies(ticket, copies)
                if ticket in known:
                    raise TransferError(f"transfer {ticket}: this ticket was used before; give every transfer a new one")
                layer_ids = layers(transfer) if layers is not None else FIRST_LAYER
                stage_count = 0 if not page_count else len(layer_ids) if kind is LOAD else 1
                self._submitted += 1
                progress = Progress(ticket, kind, layer_ids if page_count else (), stage_count, self._submitted)
                known[ticket] = progress
                begun.append(progress)
        except BaseException:
            for progress in begun:
                del known[progress.ticket]
            raise
        for progress in begun:
            (self._loads if progress.kind is LOAD else self._backups).append(progress)
        for progress in begun:
            if progress.stage_count == 0:
                self.end(progress)
        return begun

    def find(self, ticket: int) -> Progress:
        """A transfer that is open or ended lately. Raises TransferError for any other."""
        progress = self._known.get(ticket)
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
        while order:
            first = order[0]
            if not first.has_ended:
                break
            order.popleft()
            first.is_due = True
            self._completions.append(record(Completion, (first.ticket, first.error)))
            self._popped.append(first)

    def land_all(self) -> None:
        """End all open transfers, all of which have been copied."""
        for progress in self.open():
            if not progress.has_ended:
                progress.landed = progress.stage_count
                self.end(progress)

    def pop_completions(self) -> list[Completion]:
        """The completions since the last call. Cost: O(completions)."""
        taken, self._completions = self._completions, []
        while len(self._popped) > self._remembered:
            del self._known[self._popped.popleft().ticket]
        return taken


def _number(progress: Progress) -> int:
    return progress.number
