"""An engine that moves nothing, for metadata runs: there are no bytes, and a copy takes no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mypy_extensions import mypyc_attr

from unified_tree.controllers.transfer_engines.guarded_engine import CANCELLED, CLOSED
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED, Ledger
from unified_tree.terms.errors import TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer


@mypyc_attr(allow_interpreted_subclasses=True)
class NullEngine:
    """A TransferEngine whose transfers, of any component, end at the next `poll` or wait. One thread makes all calls.

    Args:
        remembered: see CpuEngine.
    """

    def __init__(self, remembered: Any = REMEMBERED) -> None:  # unchecked: compiled code would refuse in its own words
        self._ledger = Ledger(remembered)
        self._is_closed = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        if self._is_closed:
            raise TransferError("this engine was closed; it takes no more transfers")
        self._ledger.enter(transfers)

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll."""
        ledger = self._ledger
        if ledger.is_idle:
            return []
        ledger.land_all()
        return ledger.pop_completions()

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer."""
        self._ledger.land_all()
        self._ledger.has_landed(ticket, layer_id)

    def cancel(self, ticket: int) -> None:
        """See TransferEngine.cancel."""
        self._cancel(ticket, CANCELLED)

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        self._ledger.find(ticket)
        self._ledger.land_all()

    def drain(self) -> None:
        """See TransferEngine.drain."""
        self._ledger.land_all()

    def close(self) -> None:
        """See TransferEngine.close."""
        self._is_closed = True
        for progress in self._ledger.open():
            self._cancel(progress.ticket, CLOSED)

    def _cancel(self, ticket: int, reason: str) -> None:
        progress = self._ledger.moving(ticket)
        if progress is not None:
            progress.fail(reason)
            progress.is_cancelled = True
            self._ledger.end(progress)
