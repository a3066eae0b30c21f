"""The ledger of misses: each prompt token that had to be computed, booked under exactly one cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.causes import misses
from unified_tree.controllers.cache.in_flight import InFlight
from unified_tree.miss import Miss, MissCause

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.keys import Key
    from unified_tree.node import Tier
    from unified_tree.state import TreeState


class MissLedger:
    """The misses of one cache.

    Attributes:
        tokens: booked so far, by cause.
        evicted: of these the evicted ones, by component (its index) and tier of the pool that was short.
        details: of these those with a detail, by cause and detail.
        in_flight: the prompts that are being computed.
    """

    __slots__ = ("_state", "details", "evicted", "in_flight", "tokens")

    def __init__(self, state: TreeState) -> None:
        self._state = state
        self.tokens = [0] * len(MissCause)
        self.evicted: dict[tuple[int, Tier], int] = {}
        self.details: dict[tuple[MissCause, str], int] = {}
        self.in_flight = InFlight(state.page_size)

    @property
    def is_on(self) -> bool:
        """Whether misses are booked: the tree remembers what it evicted."""
        return self._state.ghosts is not None

    def book(self, lease: Lease, key: Key, in_store: int) -> None:
        """Book what a lease has to compute.

        Args:
            key: its prompt.
            in_store: up to which length a store was about to bring the prompt when the request waited no longer.
        """
        assert lease.admitted is not None
        found, unloaded = lease.admitted
        lease.admitted = None
        parts = misses(self._state, key, found, lease.compute_from, unloaded, in_store, self.in_flight.reach)
        lease.misses = parts
        for part in parts:
            self._add(part)
        lease.flight = self.in_flight.begin(key, max(found.known.length, lease.committed))

    def _add(self, miss: Miss) -> None:
        cause, begin, end, eviction, detail = miss
        count = end - begin
        self.tokens[cause] += count
        if eviction is not None:
            pool = (eviction.component, eviction.tier)
            self.evicted[pool] = self.evicted.get(pool, 0) + count
        if detail is not None:
            kind = (cause, detail)
            self.details[kind] = self.details.get(kind, 0) + count

    def published(self, lease: Lease) -> None:
        """A lease published what it has computed."""
        flight = lease.flight
        if flight is not None and not self.in_flight.move(flight, lease.committed):
            lease.flight = None

    def ended(self, lease: Lease) -> None:
        """A lease ends. If its prompt was not all published, nothing could be saved at its end."""
        flight = lease.flight
        if flight is not None:
            self.in_flight.end(flight)
            lease.flight = None
            if lease.boundary.length:
                self.note_unsaved(lease, lease.boundary.length, "aborted")

    def note_unsaved(self, lease: Lease, length: int, reason: str) -> None:
        """A lease passed a length where a window or a state was due, without saving it."""
        node = self._state.nodes.get(lease.boundary.node)
        if self._state.is_gated and node is not None and node.line is not None:
            node.line.owner(length).note_unsaved(length, reason)

    def load_failed(self, lease: Lease, tokens: int) -> None:
        """The load of a lease failed, and these tokens before those that it computes are not there after all."""
        first = lease.compute_from
        miss = Miss(MissCause.LOAD_FAILED, first - tokens, first, None, None)
        lease.misses = [miss, *lease.misses]
        self._add(miss)
