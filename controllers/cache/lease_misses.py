"""The misses of one lease: why its prompt's tokens have to be computed, and that they are under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from unified_tree.memory.in_flight import Flight
from unified_tree.misses.causes import LOAD_FAILED
from unified_tree.misses.miss import Miss

if TYPE_CHECKING:
    from unified_tree.controllers.cache.miss_ledger import MissLedger
    from unified_tree.declare.keys import Key
    from unified_tree.misses.miss import StoreLoss
    from unified_tree.terms.results import Boundary, Match


@mypyc_attr(acyclic=True, free_list_len=1)
class LeaseMisses(Flight):
    """The misses of one lease, and its prompt while that is under way.

    Args:
        found: the match that it was admitted by.
        unloaded: why what the host has was not loaded, if it was not.
    """

    __slots__ = ("_booked", "_compute_from", "_failed", "_found", "_known", "_unloaded")

    def __init__(self, found: Match, unloaded: tuple[int, str | None]) -> None:
        super().__init__(None, 0)
        self._found: Match | None = found
        self._unloaded = unloaded
        self._compute_from = 0
        self._known = 0
        self._booked: Miss | None = None
        self._failed: Miss | None = None

    def parts(self, ledger: MissLedger) -> list[Miss]:
        """All misses, ascending and without gaps; empty until they are booked."""
        if self._found is not None:
            return []
        parts = ledger.parts(self._booked, self.length, self._compute_from)
        return parts if self._failed is None else [self._failed, *parts]

    def book(
        self,
        ledger: MissLedger,
        key: Key,
        namespace: str,
        count: int,
        compute_from: int,
        committed: int,
        in_store: int,
        loss: StoreLoss | None,
    ) -> None:
        """Book what a request has to compute, and that it does so now.

        Args:
            ledger: of its cache.
            key: its prompt, of `count` tokens; `namespace`: of that.
            in_store: up to which length a store was about to bring the prompt when the request waited no longer.
            loss: what a fault of the store kept from it; None for nothing.
        """
        found = self._found
        assert found is not None
        self._found = None
        self.key = key
        self.length = count
        self._compute_from = compute_from
        self._booked = ledger.book(key, namespace, count, found, compute_from, self._unloaded, in_store, loss)
        self._known = known = max(found.known.length, committed)
        ledger.in_flight.move(self, known)

    def published(self, ledger: MissLedger, committed: int) -> None:
        """So many tokens are in the tree now; it may have known more of the prompt before, without a state to resume from."""
        if self.is_found:
            ledger.in_flight.move(self, max(committed, self._known))

    def unsaved(self, ledger: MissLedger, boundary: Boundary, lengths: list[int]) -> None:
        """States were due at lengths up to a boundary, and were not saved."""
        for length in lengths:
            ledger.note_unsaved(boundary, length, "not saved where it was due")

    def load_failed(self, ledger: MissLedger, compute_from: int, tokens: int) -> None:
        """Its load failed, so these tokens before those that it computes are not there after all."""
        self._failed = Miss(LOAD_FAILED, compute_from - tokens, compute_from, None, None)
        ledger.add(self._failed)

    def ended(self, ledger: MissLedger, boundary: Boundary) -> None:
        """The lease ends. If its prompt was not all published, nothing could be saved at its end."""
        if self.is_found:
            ledger.in_flight.end(self)
            ledger.note_unsaved(boundary, boundary.length, "aborted")
