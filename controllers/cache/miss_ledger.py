"""The ledger of misses: each prompt token that had to be computed, booked under exactly one cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.causes import misses
from unified_tree.controllers.cache.in_flight import InFlight
from unified_tree.miss_cause import MissCause

if TYPE_CHECKING:
    from unified_tree.keys import Key
    from unified_tree.miss import Miss
    from unified_tree.node import Tier
    from unified_tree.receipt import Boundary, Match
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

    def book(self, key: Key, found: Match, compute_from: int, unloaded: tuple[int, str | None], in_store: int) -> list[Miss]:
        """Book what a request has to compute, and return it; see `LeaseMisses` and `causes.misses`."""
        parts = misses(self._state, key, found, compute_from, unloaded, in_store, self.in_flight.reach)
        for part in parts:
            self.add(part)
        return parts

    def add(self, miss: Miss) -> None:
        """Book one miss."""
        code, eviction, detail = miss.code, miss.eviction, miss.detail
        count = miss.end - miss.begin
        self.tokens[code] += count
        if eviction is not None:
            pool = (eviction.component, eviction.tier)
            self.evicted[pool] = self.evicted.get(pool, 0) + count
        if detail is not None:
            kind = (miss.cause, detail)
            self.details[kind] = self.details.get(kind, 0) + count

    def note_unsaved(self, boundary: Boundary, length: int, reason: str) -> None:
        """At a length on the path to a boundary no window or state was saved."""
        node = self._state.nodes.get(boundary.node)
        if length and self._state.is_gated and node is not None and node.line is not None:
            node.line.owner(length).note_unsaved(length, reason)
