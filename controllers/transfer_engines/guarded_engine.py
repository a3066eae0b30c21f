"""The common part of all engines: every call of a TransferEngine, with its checks, locking and waiting.

An engine adds how transfers start, how one is cancelled, what has happened since, and how to wait for progress. The ledger
tracks the rest: known tickets, landed layers, and due completions in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from threading import RLock
from typing import TYPE_CHECKING

from unified_tree.terms.errors import TransferError

if TYPE_CHECKING:
    from unified_tree.controllers.transfer_engines.ledger import Ledger
    from unified_tree.controllers.transfer_engines.transfer import Completion, Transfer

CANCELLED = "cancelled"
CLOSED = "the engine was closed"


class GuardedEngine(ABC):
    """A TransferEngine over a ledger.

    Args:
        ledger: its transfers.
        lock: held during every hook; one that threads share, if they share the ledger.
    """

    def __init__(self, ledger: Ledger, lock: AbstractContextManager[object] | None = None) -> None:
        self._ledger = ledger
        self._lock = RLock() if lock is None else lock  # a no-op context manager would cost two Python calls
        self._is_closed = False

    def submit(self, transfers: Sequence[Transfer]) -> None:
        """See TransferEngine.submit."""
        if self._is_closed:
            raise TransferError("this engine was closed; it takes no more transfers")
        with self._lock:
            self._begin(transfers)

    def poll(self) -> list[Completion]:
        """See TransferEngine.poll. With nothing open it takes no lock."""
        if self._ledger.is_idle:
            return []
        with self._lock:
            self._advance()
            return self._ledger.pop_completions()

    def wait_layer(self, ticket: int, layer_id: int) -> None:
        """See TransferEngine.wait_layer."""
        with self._lock:
            self._advance()
            while not self._ledger.has_landed(ticket, layer_id):
                self._await_change()

    def cancel(self, ticket: int) -> None:
        """See TransferEngine.cancel."""
        with self._lock:
            self._cancel(ticket, CANCELLED)

    def wait(self, ticket: int) -> None:
        """See TransferEngine.wait."""
        with self._lock:
            progress = self._ledger.find(ticket)
            while not progress.is_due:
                self._await_change()

    def drain(self) -> None:
        """See TransferEngine.drain."""
        with self._lock:
            while self._ledger.has_open:
                self._await_change()

    def close(self) -> None:
        """See TransferEngine.close."""
        self._is_closed = True
        with self._lock:
            for progress in self._ledger.open():
                self._cancel(progress.ticket, CLOSED)
        self._stop()

    @abstractmethod
    def _begin(self, transfers: Sequence[Transfer]) -> None:
        """Enter transfers in the ledger and start them. Raises as TransferEngine.submit does, with none of them accepted."""

    @abstractmethod
    def _cancel(self, ticket: int, reason: str) -> None:
        """Make an open transfer end soon."""

    @abstractmethod
    def _advance(self) -> None:
        """Tell the ledger what has happened. Never blocks."""

    @abstractmethod
    def _await_change(self) -> None:
        """Wait for progress and report it to the ledger. Called only while a transfer is open."""

    def _stop(self) -> None:
        """All open transfers are cancelled: return once nothing of them moves. Idempotent."""
        self.drain()
