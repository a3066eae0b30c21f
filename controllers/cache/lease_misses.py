"""The misses of one lease: why its prompt's tokens have to be computed, and that they are under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from unified_tree.causes import LOAD_FAILED
from unified_tree.miss import Miss

if TYPE_CHECKING:
    from unified_tree.controllers.cache.miss_ledger import MissLedger
    from unified_tree.in_flight import Flight
    from unified_tree.keys import Key
    from unified_tree.receipt import Boundary, Match


@mypyc_attr(acyclic=True)
class LeaseMisses:
    """The misses of one lease.

    Args:
        ledger: of its cache, where they are booked.
        found: the match that it was admitted by.
        unloaded: why what the host has was not loaded, if it was not.
    """

    __slots__ = ("_booked", "_compute_from", "_count", "_failed", "_flight", "_found", "_known", "_ledger", "_unloaded")

    def __init__(self, ledger: MissLedger, found: Match, unloaded: tuple[int, str | None]) -> None:
        self._ledger = ledger
        self._found: Match | None = found
        self._unloaded = unloaded
        self._flight: Flight | None = None
        self._count = 0
        self._compute_from = 0
        self._known = 0
        self._booked: list[Miss] | None = None
        self._failed: Miss | None = None

    @property
    def parts(self) -> list[Miss]:
        """All misses, ascending and without gaps; empty until they are booked."""
        if self._booked is None:
            return []
        parts = self._ledger.parts(self._booked, self._count, self._compute_from)
        return parts if self._failed is None else [self._failed, *parts]

    def book(self, key: Key, count: int, compute_from: int, committed: int, in_store: int) -> None:
        """Book what a request has to compute, and that it does so now.

        Args:
            key: its prompt, of `count` tokens.
            in_store: up to which length a store was about to bring the prompt when the request waited no longer.
        """
        found = self._found
        assert found is not None
        self._found = None
        self._count = count
        self._compute_from = compute_from
        self._booked = self._ledger.book(key, count, found, compute_from, self._unloaded, in_store)
        self._known = max(found.known.length, committed)
        self._flight = self._ledger.in_flight.begin(key, count, self._known)

    def published(self, committed: int) -> None:
        """So many tokens are in the tree now; it may have known more of the prompt before, without a state to resume from."""
        if self._flight is not None and not self._ledger.in_flight.move(self._flight, max(committed, self._known)):
            self._flight = None

    def unsaved(self, boundary: Boundary, lengths: list[int]) -> None:
        """States were due at lengths up to a boundary, and were not saved."""
        for length in lengths:
            self._ledger.note_unsaved(boundary, length, "not saved where it was due")

    def load_failed(self, compute_from: int, tokens: int) -> None:
        """Its load failed, so these tokens before those that it computes are not there after all."""
        self._failed = Miss(LOAD_FAILED, compute_from - tokens, compute_from, None, None)
        self._ledger.add(self._failed)

    def ended(self, boundary: Boundary) -> None:
        """The lease ends. If its prompt was not all published, nothing could be saved at its end."""
        if self._flight is not None:
            self._ledger.in_flight.end(self._flight)
            self._flight = None
            self._ledger.note_unsaved(boundary, boundary.length, "aborted")
