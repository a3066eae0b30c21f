"""An engine that moves nothing: for metadata runs, where a copy costs no time and there are no bytes."""

from __future__ import annotations

from collections.abc import Sequence

from unified_tree.controllers.transfer_engines.ledger import REMEMBERED, Ledger
from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer
from unified_tree.errors import TransferError


class NullEngine:
    """A TransferEngine whose transfers, of any component, end when they are next asked about: by `poll`, or by waiting.

    Args:
        remembered: see CpuEngine.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._ledger = Ledger(remembered)
        self._is_closed = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit; every component is moved."""
        if self._is_closed:
            raise TransferError("this engine was closed; it takes no more transfers")
        self._ledger.enter(transfers, lambda _: (0,))

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll."""
        self.drain()
        return self._ledger.take()

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer; never waits."""
        self.drain()
        self._ledger.has_landed(ticket, layer_id)

    def cancel(self, ticket: int) -> None:
        """See TransferEngine.cancel."""
        self._end(ticket, "cancelled")

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        self._ledger.find(ticket)
        self.drain()

    def drain(self) -> None:
        """See TransferEngine.drain."""
        for ticket in list(self._ledger.open):
            self._end(ticket, None)

    def close(self) -> None:
        """See TransferEngine.close."""
        self._is_closed = True
        for ticket in list(self._ledger.open):
            self._end(ticket, "the engine was closed")

    def _end(self, ticket: int, error: str | None) -> None:
        progress = self._ledger.open.get(ticket)
        if progress is None or progress.has_ended:
            return
        progress.error = error
        progress.is_cancelled = error is not None
        progress.landed = progress.stage_count
        self._ledger.end(progress)
