"""What one rank puts into its messages, and what it concludes from the reduced ones. Pure bookkeeping."""

from __future__ import annotations

from hashlib import blake2b
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_tree.controllers.ranks.consensus import Agreement, Decision, Finished
from unified_tree.controllers.ranks.message import (
    DIGEST_BYTES,
    FLAGS,
    OPENED,
    TICK_BYTES,
    VIEW_BYTES,
    VOTED,
    WANTED,
    Message,
    MessageShape,
    are_equal,
    count_bytes,
    neutral,
    slot_bytes,
    with_complement,
)
from unified_tree.terms.errors import ConfigurationError, DivergenceError, TicketError
from unified_tree.terms.results import record


class Ticket:
    """A ticket that was opened here.

    Its lengths are voted on in windows, the longest first; all ranks move to the next window in the same tick.

    Args:
        number: counted from 0.
        identity: its subject.
        page_count: its longest length.
        candidates: lengths a window.
    """

    __slots__ = ("_candidates", "_digests", "_high", "_lengths", "number", "page_count", "wanted")

    def __init__(self, number: int, identity: bytes, page_count: int, candidates: int) -> None:
        self.number = number
        self.page_count = page_count
        self.wanted = True
        said = blake2b(f"{number} {page_count} ".encode() + identity, digest_size=DIGEST_BYTES).digest()
        self._digests = with_complement(said)
        self._candidates = candidates
        self._high = page_count
        self._lengths: NDArray[np.bool_] | None = None

    def propose(self, lengths: NDArray[np.bool_]) -> None:
        """Store this rank's vote. Raises TicketError for a second one, and for an invalid set of lengths."""
        if self._lengths is not None:
            raise TicketError(f"lengths were proposed for ticket {self.number} before")
        if lengths.dtype != np.bool_ or lengths.ndim != 1 or not 0 < len(lengths) <= self.page_count + 1 or not lengths[0]:
            raise TicketError(
                f"ticket {self.number} wants a bool for each of 0 … {self.page_count} pages, the first true, not "
                f"{lengths.dtype} of shape {lengths.shape}"
            )
        self._lengths = np.zeros(self.page_count + 1, np.bool_)
        self._lengths[: len(lengths)] = lengths

    @property
    def _low(self) -> int:
        return max(0, self._high + 1 - self._candidates)

    def slot(self) -> bytes:
        """This rank's vote, as a message says it. Cost: O(candidates)."""
        size = self._candidates // 8
        flags = ~FLAGS & 0xFF | OPENED | (WANTED if self.wanted else 0)
        if self._lengths is None:
            return bytes((flags,)) + self._digests + bytes(size)
        bits = np.packbits(self._lengths[self._low : self._high + 1], bitorder="little").tobytes()
        return bytes((flags | VOTED,)) + self._digests + bits.ljust(size, b"\0")

    def read(self, lengths_voted: bytes) -> Decision | None:
        """The decision where all ranks have voted, given the AND of their lengths; None if shorter ones must be voted on."""
        low, high = self._low, self._high
        bits = np.frombuffer(lengths_voted, np.uint8)
        common = np.unpackbits(bits, count=high + 1 - low, bitorder="little").astype(np.bool_)
        if not common.any():
            self._high = low - 1
            return None
        lengths = np.zeros(self.page_count + 1, np.bool_)
        lengths[low : high + 1] = common
        lengths[0] = True
        return Decision(ticket=self.number, lengths=lengths)


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


class History:
    """One rank's history: how many messages it sent, and a digest of the events before each.

    Args:
        rank: this one's place among the views.
        ranks: how many there are.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self._ranks = ranks
        self._before = neutral(rank * VIEW_BYTES)
        self._behind = neutral((ranks - 1 - rank) * VIEW_BYTES)
        self._sent = 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self._digest: bytes | None = None

    def record(self, what: bytes) -> None:
        """Add an event to the history. Events are delimited, so that "ab" and "c" differ from "a" and "bc". Cost: O(bytes)."""
        self._hash.update(len(what).to_bytes(8, "little") + what)
        self._digest = None

    def views(self) -> bytes:
        """The views of the next message: this rank's, among neutral ones."""
        if self._digest is None:
            self._digest = self._hash.digest()
        sent = self._sent.to_bytes(TICK_BYTES, "little")
        self._sent += 1
        return b"".join((self._before, sent, self._digest, self._behind))

    def check(self, views: bytes, tick: int) -> None:
        """Raise DivergenceError, on all ranks alike, unless all views are equal; it names the ranks that differ."""
        if views == views[:VIEW_BYTES] * self._ranks:
            return
        by_rank = [views[begin : begin + VIEW_BYTES] for begin in range(0, len(views), VIEW_BYTES)]
        seen: dict[bytes, list[int]] = {}
        for rank, view in enumerate(by_rank):
            seen.setdefault(view, []).append(rank)
        largest = max(seen.values(), key=len)
        others = [rank for rank in range(self._ranks) if rank not in largest]
        ticks = sorted({int.from_bytes(view[:TICK_BYTES], "little") for view in by_rank})
        if len(ticks) > 1:
            raise DivergenceError(
                f"tick {tick}: messages of ranks {others} and {largest} are not of the same tick but of {ticks}: all must call "
                "tick equally often, and nothing else may use their process group"
            )
        raise DivergenceError(
            f"tick {tick}: the history of ranks {others}, as sent in tick {ticks[0]}, differs from that of {largest}: they did "
            "not do the same. Look for what depends on a rank's own time, hash seed or results, and start all of them anew"
        )


NONE: frozenset[int] = frozenset()


class Completions:
    """One rank's count of one kind. Sets of operations are integers, bit i standing for operation base + i.

    Args:
        kind: its name.
        window: how many operations a message speaks of, a multiple of 8.
        furthest: how far a number may be ahead of the operations that all ranks finished.
    """

    def __init__(self, kind: str, window: int, furthest: int) -> None:
        self._kind = kind
        self._window = window
        self._furthest = furthest
        self._base = 0
        self._finished = 0
        self._failed = 0
        self._said: bytes | None = None

    def finish(self, number: Any, *, failed: Any) -> None:  # any integer, numpy's too, in compiled code
        """Count an operation. Raises TicketError for a number that was counted before, or that is too far ahead."""
        position = index(number) - self._base
        if position >= self._furthest:
            raise TicketError(
                f"{self._kind} operation {number} is {position} beyond the last that all ranks finished: they are numbered "
                "from 0, as they were begun"
            )
        if position < 0 or self._finished >> position & 1:
            raise TicketError(f"{self._kind} operation {number} was counted as finished before")
        self._finished |= 1 << position
        self._failed |= bool(failed) << position
        self._said = None

    def count(self) -> bytes:
        """The counts in the next message: which operations after the agreed ones this rank has finished, and which of them did
        not fail. Cost: O(window) where that has changed.
        """
        if self._said is None:
            mask = (1 << self._window) - 1
            size = self._window // 8
            self._said = (self._finished & mask).to_bytes(size, "little") + (~self._failed & mask).to_bytes(size, "little")
        return self._said

    def read(self, count: bytes) -> Finished | None:
        """The operations that the reduced message reports as newly finished on all ranks; None if there are none. Cost:
        O(window), or O(1) if there are none.
        """
        if not count[0] & 1:
            return None
        size = self._window // 8
        finished = int.from_bytes(count[:size], "little")
        new = (~finished & (finished + 1)).bit_length() - 1  # the run of ones from the lowest bit
        succeeded = int.from_bytes(count[size:], "little")
        numbers = range(self._base, self._base + new)
        has_failed = ~succeeded & ((1 << new) - 1)
        failed = frozenset([number for i, number in enumerate(numbers) if has_failed >> i & 1]) if has_failed else NONE
        self._base += new
        self._finished >>= new
        self._failed >>= new
        self._said = None
        return record(Finished, (self._kind, numbers, failed))


class Ballot:
    """One rank's state. `message` and `conclude` are called in turn, and all ranks conclude the same from the same messages.

    Args:
        shape: the same on all ranks.
        rank: this one.
        ranks: how many there are.

    Attributes:
        tickets: see Consensus.open, propose and cancel.
        history: see Consensus.record.
    """

    def __init__(self, shape: MessageShape, rank: int, ranks: int) -> None:
        self.tickets = Tickets(shape)
        self.history = History(rank, ranks)
        self._counts = {kind: Completions(kind, shape.completions, shape.furthest) for kind in shape.kinds}
        self._count_bytes = count_bytes(shape)
        self._views_end = ranks * VIEW_BYTES
        self._counts_end = self._views_end + len(shape.kinds) * self._count_bytes
        self._idle = self._said()

    def finished(self, kind: str, number: Any, *, failed: Any) -> None:
        """See Consensus.finished."""
        count = self._counts.get(kind)
        if count is None:
            raise TicketError(f"no kind {kind!r} of operations is counted here, only {', '.join(self._counts) or 'none'}")
        count.finish(number, failed=failed)

    def message(self) -> Message:
        """This rank's next message. Cost: one copy of it, and of what has changed since the last one as many steps as bytes."""
        return self.history.views() + self._said()

    def _said(self) -> bytes:
        """All of it but the views."""
        return b"".join([count.count() for count in self._counts.values()]) + self.tickets.slots()

    def conclude(self, reduced: Message, tick: int) -> Agreement:
        """Apply the AND of all ranks' messages. Raises DivergenceError. Cost: one comparison of it, and O(what it reports)."""
        self.history.check(reduced[: self._views_end], tick)
        if reduced[self._views_end :] == self._idle:
            return record(Agreement, (tick, (), (), ()))
        decisions, cancelled = self.tickets.read(reduced[self._counts_end :], tick)
        begin = self._views_end
        counts = []
        for count in self._counts.values():
            counts.append(count.read(reduced[begin : begin + self._count_bytes]))
            begin += self._count_bytes
        finished = tuple([found for found in counts if found is not None])
        return record(Agreement, (tick, tuple(decisions), tuple(cancelled), finished))
