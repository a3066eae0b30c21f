"""A load back that a lease waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque

    from unified_tree.nodes.node import Receipt


class Load:
    """The transfers that a lease waits for before its boundary is on device: its own, and those of other loads.

    Attributes:
        boundary: where the lease will resume; valid while its lock is held, whatever is split around it.
        tickets: of all transfers it waits for, in the order they were submitted.
        open: those of `tickets` that have not ended.
        laid_out: how many were open when the lease's page tables were last filled.
        changed: where it is put when one of them has ended; None for nobody who wants to know.
        error: why it failed; None if it has not.
        tokens, size_bytes: the tokens gained beyond what was on device; the bytes of its own transfer alone.
    """

    __slots__ = ("_receipt", "boundary", "changed", "error", "laid_out", "open", "size_bytes", "tickets", "tokens")

    def __init__(self, tickets: list[int], receipt: Receipt, tokens: int, size_bytes: int) -> None:
        self.boundary = receipt.boundary
        self.tickets = tickets
        self.open = set(tickets)
        self.laid_out = len(tickets)
        self.changed: deque[Load] | None = None
        self.error: str | None = None
        self._receipt: Receipt | None = receipt
        self.tokens = tokens
        self.size_bytes = size_bytes

    @property
    def has_ended(self) -> bool:
        """Whether no transfer is open any more."""
        return not self.open

    @property
    def is_released(self) -> bool:
        """Whether nothing is kept for it any more: its lease has ended, or what it waited for is gone."""
        return self._receipt is None

    @property
    def has_unseen_end(self) -> bool:
        """Whether a transfer has ended since the last `mark_seen`."""
        return self.has_ended or len(self.open) < self.laid_out

    def mark_seen(self) -> None:
        """Mark all transfers that have ended so far as seen by the lease."""
        self.laid_out = len(self.open)

    def transfer_ended(self, ticket: int, error: str | None) -> None:
        """One transfer that it waits for ended."""
        self.open.discard(ticket)
        if self.changed is not None:
            self.changed.append(self)
        if error is not None:
            self.fail(f"the load of {self.boundary} failed: {error}")

    def fail(self, error: str) -> None:
        """Mark it as failed; the first reason is kept."""
        self.error = self.error or error

    def lock(self, receipt: Receipt) -> None:
        """Keep the receipt for what is on device now, then release the one before."""
        before, self._receipt, self.boundary = self._receipt, receipt, receipt.boundary
        if before is not None:
            before.release()

    def release(self) -> None:
        """Release the receipt."""
        if self._receipt is not None:
            self._receipt.release()
            self._receipt = None
