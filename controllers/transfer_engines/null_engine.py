"""An engine that moves nothing, for metadata runs: there are no bytes, and a copy takes no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.transfer_engines.guarded_engine import GuardedEngine
from unified_tree.controllers.transfer_engines.ledger import REMEMBERED, Ledger

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines.transfer import Transfer


class NullEngine(GuardedEngine):
    """A TransferEngine whose transfers, of any component, end at the next `poll` or wait.

    Args:
        remembered: see CpuEngine.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        super().__init__(Ledger(remembered))

    def _begin(self, transfers: Sequence[Transfer]) -> None:
        self._ledger.enter(transfers, lambda _: (0,))

    def _advance(self) -> None:
        for ticket in list(self._ledger.open):
            self._end(ticket, None)

    def _await_change(self) -> None:
        self._advance()

    def _cancel(self, ticket: int, reason: str) -> None:
        self._end(ticket, reason)

    def _end(self, ticket: int, error: str | None) -> None:
        progress = self._ledger.open.get(ticket)
        if progress is None or progress.has_ended:
            return
        progress.error = error
        progress.is_cancelled = error is not None
        progress.landed = progress.stage_count
        self._ledger.end(progress)
