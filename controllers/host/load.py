"""A load back that a lease waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.receipt import Receipt


class Load:
    """What must arrive from host before a boundary is on device: one transfer of its own, and those of others that bring
    the rest.

    Attributes:
        boundary: where the lease will resume; it stays valid as long as its lock is held, whatever is cut around it.
        tickets: of all transfers it waits for, in the order they were submitted.
        open: those that have not ended.
        laid_out: how many were open when the lease's page tables were last made.
        error: why it cannot arrive any more; None while it can.
        tokens, size_bytes: how much it brings beyond what was on device; of its own transfer alone.
    """

    __slots__ = ("_receipt", "boundary", "error", "laid_out", "open", "size_bytes", "tickets", "tokens")

    def __init__(self, tickets: list[int], receipt: Receipt, tokens: int, size_bytes: int) -> None:
        self.boundary = receipt.boundary
        self.tickets = tickets
        self.open = set(tickets)
        self.laid_out = len(tickets)
        self.error: str | None = None
        self._receipt: Receipt | None = receipt
        self.tokens = tokens
        self.size_bytes = size_bytes

    @property
    def has_ended(self) -> bool:
        """Whether nothing is on its way any more."""
        return not self.open

    @property
    def has_unseen_end(self) -> bool:
        """Whether some of it has ended that the lease does not know of."""
        return self.has_ended or len(self.open) < self.laid_out

    def mark_seen(self) -> None:
        """The lease knows of all that has ended so far."""
        self.laid_out = len(self.open)

    def transfer_ended(self, ticket: int, error: str | None) -> None:
        """One transfer that it waits for ended."""
        self.open.discard(ticket)
        if error is not None:
            self.fail(f"the load of {self.boundary} failed: {error}")

    def fail(self, error: str) -> None:
        """It cannot arrive any more; the first reason stays."""
        self.error = self.error or error

    def lock(self, receipt: Receipt) -> None:
        """Hold the receipt of what is on device now; only then the one before is released."""
        before, self._receipt, self.boundary = self._receipt, receipt, receipt.boundary
        if before is not None:
            before.release()

    def release(self) -> None:
        """Release what is on device."""
        if self._receipt is not None:
            self._receipt.release()
            self._receipt = None
