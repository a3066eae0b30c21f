"""A load back that a lease waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.receipt import Receipt


class Load:
    """What must arrive from host before a boundary is on device: one transfer of its own, and those of others that bring
    the rest.

    Attributes:
        boundary: where the lease will resume; it stays valid as long as `pin` is held, whatever is cut around it.
        tickets: of all transfers it waits for, in the order they were submitted.
        open: those that have not ended.
        laid_out: how many were open when the lease's page tables were last made.
        error: why it cannot arrive any more; None while it can.
        tokens, size_bytes: how much it brings beyond what was on device; of its own transfer alone.
    """

    __slots__ = ("boundary", "error", "laid_out", "open", "pin", "size_bytes", "tickets", "tokens")

    def __init__(self, tickets: list[int], pin: Receipt, tokens: int, size_bytes: int) -> None:
        self.boundary = pin.boundary
        self.tickets = tickets
        self.open = set(tickets)
        self.laid_out = len(tickets)
        self.error: str | None = None
        self.pin: Receipt | None = pin
        self.tokens = tokens
        self.size_bytes = size_bytes

    @property
    def ended(self) -> bool:
        """Whether nothing is on its way any more."""
        return not self.open

    @property
    def has_news(self) -> bool:
        """Whether some of it has ended that the lease does not know of."""
        return self.ended or len(self.open) < self.laid_out

    def hold(self, pin: Receipt) -> None:
        """Pin what is on device now; before that, what was pinned so far is not let go."""
        before, self.pin, self.boundary = self.pin, pin, pin.boundary
        if before is not None:
            before.release()

    def let_go(self) -> None:
        """Stop pinning what is on device."""
        if self.pin is not None:
            self.pin.release()
            self.pin = None
