"""The tickets that are open, and which of them have a slot in the message."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.ranks.consensus import Decision
from unified_tree.controllers.ranks.message import DIGEST_BYTES, OPENED, VOTED, WANTED, are_equal, neutral, slot_bytes
from unified_tree.controllers.ranks.message_shape import MessageShape
from unified_tree.controllers.ranks.ticket import Ticket
from unified_tree.terms.errors import ConfigurationError, DivergenceError, TicketError


class Tickets:
    """One rank's tickets.

    The slots hold the lowest tickets that are not decided, opened here or not. So a slot refers to the same ticket on all
    ranks, even if they open it in different ticks.
    """

    def __init__(self, shape: MessageShape) -> None:
        self._candidates = shape.candidates
        self._opened = 0
        self._open: dict[int, Ticket] = {}
        self._in_slots = list(range(shape.slots))
        self._without_slot = shape.slots
        self._slot_bytes = slot_bytes(shape)
        self._empty = bytes((~(OPENED | VOTED) & 0xFF,)) + neutral(self._slot_bytes - 1)
        self._idle = self._empty * shape.slots
        self._said: bytes | None = self._idle

    def open(self, identity: bytes, page_count: Any) -> int:  # any integer, numpy's too, in compiled code
        """See Consensus.open."""
        page_count = index(page_count)
        if page_count < 0:
            raise ConfigurationError(f"page_count must not be negative: {page_count}")
        number = self._opened
        self._open[number] = Ticket(number, identity, page_count, self._candidates)
        self._opened += 1
        self._said = None
        return number

    def propose(self, number: Any, lengths: NDArray[np.bool_]) -> None:
        """See Consensus.propose."""
        ticket = self._open.get(number)
        if ticket is None:
            raise TicketError(f"ticket {number} is not open: it was never opened here, or is agreed on already")
        if ticket.wanted:
            ticket.propose(lengths)
            self._said = None

    def cancel(self, number: Any) -> None:
        """See Consensus.cancel."""
        if not 0 <= number < self._opened:
            raise TicketError(f"ticket {number} was never opened here")
        ticket = self._open.get(number)
        if ticket is not None:
            ticket.wanted = False
            self._said = None

    def slots(self) -> bytes:
        """This rank's votes, as the next message says them. Cost: O(slots · candidates) where they have changed."""
        if self._said is None:
            tickets = (self._open.get(number) for number in self._in_slots)
            self._said = b"".join(self._empty if ticket is None else ticket.slot() for ticket in tickets)
        return self._said

    def read(self, slots: bytes, tick: int) -> tuple[list[Decision], list[int]]:
        """The decisions and cancelled tickets in the reduced message, both ascending; their slots become free.

        Raises DivergenceError, with nothing changed, if a ticket is about different things on different ranks. Cost: O(slots ·
        candidates); where no rank has any ticket, one comparison.
        """
        decisions: list[Decision] = []
        cancelled: list[int] = []
        if slots == self._idle:
            return decisions, cancelled
        by_slot = [slots[begin : begin + self._slot_bytes] for begin in range(0, len(slots), self._slot_bytes)]
        lengths_begin = 1 + 2 * DIGEST_BYTES
        for number, slot in zip(self._in_slots, by_slot, strict=True):
            if not are_equal(slot[1:lengths_begin]):
                raise DivergenceError(
                    f"tick {tick}: ticket {number} is about another request on another rank: all ranks must open tickets for "
                    "the same requests in the same order, with the same page counts"
                )
        for number, slot in zip(self._in_slots, by_slot, strict=True):
            flags = slot[0]
            if flags & OPENED and not flags & WANTED:
                cancelled.append(number)
            elif flags & VOTED:
                decision = self._open[number].read(slot[lengths_begin:])
                if decision is not None:
                    decisions.append(decision)
                self._said = None
        self._remove([*cancelled, *(decision.ticket for decision in decisions)])
        return decisions, cancelled

    def _remove(self, numbers: list[int]) -> None:
        for number in numbers:
            self._said = None
            del self._open[number]
            self._in_slots.remove(number)
            self._in_slots.append(self._without_slot)
            self._without_slot += 1
