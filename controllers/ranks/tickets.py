"""The tickets that are open, and which of them have a slot in the message."""

from __future__ import annotations

from operator import index

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.ranks.consensus import Decision
from unified_tree.controllers.ranks.message import OPENED, VOTED, WANTED, are_equal
from unified_tree.controllers.ranks.message_shape import MessageShape
from unified_tree.controllers.ranks.ticket import Ticket
from unified_tree.errors import ConfigurationError, DivergenceError, TicketError


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

    def open(self, identity: bytes, page_count: int) -> int:
        """See Consensus.open."""
        page_count = index(page_count)
        if page_count < 0:
            raise ConfigurationError(f"page_count must not be negative: {page_count}")
        number = self._opened
        self._open[number] = Ticket(number, identity, page_count, self._candidates)
        self._opened += 1
        return number

    def propose(self, number: int, lengths: NDArray[np.bool_]) -> None:
        """See Consensus.propose."""
        ticket = self._open.get(number)
        if ticket is None:
            raise TicketError(f"ticket {number} is not open: it was never opened here, or is agreed on already")
        if ticket.wanted:
            ticket.propose(lengths)

    def cancel(self, number: int) -> None:
        """See Consensus.cancel."""
        if not 0 <= number < self._opened:
            raise TicketError(f"ticket {number} was never opened here")
        ticket = self._open.get(number)
        if ticket is not None:
            ticket.wanted = False

    def write(self, slots: NDArray[np.void]) -> None:
        """Write this rank's votes into the slots of a message. Cost: O(slots · candidates)."""
        slots["flags"] = ~np.uint8(OPENED | VOTED)
        for i, number in enumerate(self._in_slots):
            ticket = self._open.get(number)
            if ticket is not None:
                ticket.write(slots[i])

    def read(self, slots: NDArray[np.void], tick: int) -> tuple[list[Decision], list[int]]:
        """The decisions and cancelled tickets in the reduced message, both ascending; their slots become free.

        Raises DivergenceError, with nothing changed, if a ticket is about different things on different ranks.
        """
        if not are_equal(slots["identity"], slots["complement"]):
            slot = next(slot for slot in range(len(slots)) if not are_equal(slots[slot]["identity"], slots[slot]["complement"]))
            raise DivergenceError(
                f"tick {tick}: ticket {self._in_slots[slot]} is about another request on another rank: all ranks must open "
                "tickets for the same requests in the same order, with the same page counts"
            )
        decisions, cancelled = [], []
        for i, flags in enumerate(slots["flags"].tolist()):
            number = self._in_slots[i]
            if flags & OPENED and not flags & WANTED:
                cancelled.append(number)
            elif flags & VOTED:
                decision = self._open[number].read(slots[i])
                if decision is not None:
                    decisions.append(decision)
        self._remove([*cancelled, *(decision.ticket for decision in decisions)])
        return decisions, cancelled

    def _remove(self, numbers: list[int]) -> None:
        for number in numbers:
            del self._open[number]
            self._in_slots.remove(number)
            self._in_slots.append(self._without_slot)
            self._without_slot += 1
