"""A transfer engine: copies at once, in the caller's thread, through movers of one's own. For small pools, and to read.

It is given to a host tier as it is: `HostTier(page_counts=..., engine=EagerEngine(movers))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unified_tree import EffectKind, TransferError
from unified_tree.controllers.pools import PageMover
from unified_tree.controllers.transfer_engines import Completion, Transfer


class EagerEngine:
    """A TransferEngine whose transfers have ended when `submit` returns."""

    def __init__(self, movers: Mapping[str, PageMover]) -> None:
        self._movers = dict(movers)
        self._ended: dict[int, Transfer] = {}  # a real engine forgets old ones
        self._errors: dict[int, str | None] = {}
        self._completions: list[Completion] = []
        self._is_closed = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """Check all of them, and then copy one after the other."""
        if self._is_closed:
            raise TransferError("this engine was closed; it takes no more transfers")
        tickets = [transfer.ticket for transfer in transfers]
        for transfer in transfers:
            transfer.check()
            if transfer.ticket in self._ended or tickets.count(transfer.ticket) > 1:
                raise TransferError(f"transfer {transfer.ticket}: this ticket was used before")
            for copy in transfer.copies:
                if copy.component not in self._movers:
                    raise TransferError(f"transfer {transfer.ticket}: no mover for {copy.component!r}")
        for transfer in transfers:
            self._ended[transfer.ticket] = transfer
            self._errors[transfer.ticket] = error = self._move(transfer)
            self._completions.append(Completion(ticket=transfer.ticket, error=error))

    def _move(self, transfer: Transfer) -> str | None:
        """What went wrong; a failed copy is an outcome of its transfer, and no other's."""
        try:
            for copy in transfer.copies:
                mover = self._movers[copy.component]
                if copy.source.size and transfer.kind is EffectKind.BACKUP:
                    mover.backup(copy.source, copy.target)
                elif copy.source.size:
                    mover.load_layers(mover.layer_ids, copy.source, copy.target)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def poll(self) -> list[Completion]:
        """What ended since the last call."""
        completions, self._completions = self._completions, []
        return completions

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """Never waits: a load has landed, or has failed."""
        self.wait(ticket)
        if self._ended[ticket].kind is EffectKind.BACKUP:
            raise TransferError(f"transfer {ticket} is a backup; only loads have layers to wait for")
        if self._errors[ticket] is not None:
            raise TransferError(f"transfer {ticket}: layer {layer_id} will not come: {self._errors[ticket]}")

    def cancel(self, ticket: int) -> None:
        """Too late, for every transfer: what has ended keeps its outcome."""

    def wait(self, ticket: int) -> None:
        """Never waits."""
        if ticket not in self._ended:
            raise TransferError(f"transfer {ticket} is not known: it was never submitted")

    def drain(self) -> None:
        """Nothing is ever open."""

    def close(self) -> None:
        """Take nothing more. Idempotent."""
        self._is_closed = True
