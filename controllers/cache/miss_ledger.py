"""The ledger of misses: each prompt token that had to be computed, booked under exactly one cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from unified_tree.ages import Bucket
from unified_tree.causes import LAST_TOKEN, NEVER_SAVED, OTHER_WEIGHTS, PAGE_REMAINDER, add_end, end_of_pages, misses_in_pages
from unified_tree.in_flight import InFlight
from unified_tree.miss_cause import MissCause
from unified_tree.node import Tier

if TYPE_CHECKING:
    from unified_tree.ghosts import Eviction
    from unified_tree.keys import Key
    from unified_tree.miss import Miss
    from unified_tree.receipt import Boundary, Match
    from unified_tree.state import TreeState


SIZES: Final = 48
MAX_NAMESPACES: Final = 256
MAX_DETAILS: Final = 256


class MissLedger:
    """The misses of one cache.

    Attributes:
        beneficiaries: the evicted ones by the other namespace for which room was made; those of the first MAX_NAMESPACES.
        namespaces: of what was never saved, and of what other weights had computed, the tokens by cause, detail and namespace;
            those of the first MAX_NAMESPACES such.
        details: of these those with a detail, by cause and detail; the first MAX_DETAILS of them.
        in_flight: the prompts that are being computed.
    """

    __slots__ = (
        "_evicted",
        "_namespace",
        "_short_by",
        "_state",
        "_tokens",
        "beneficiaries",
        "details",
        "in_flight",
        "namespaces",
    )

    def __init__(self, state: TreeState) -> None:
        self._state = state
        self._tokens = [Bucket() for _ in MissCause]
        self._evicted = [0] * (2 * len(state.components))
        self._short_by: list[list[int] | None] = [None] * (2 * len(state.components))
        self.beneficiaries: dict[str, int] = {}
        self.namespaces: dict[tuple[int, str | None, str], int] = {}
        self.details: dict[tuple[MissCause, str], int] = {}
        self.in_flight = InFlight(state.page_size)
        self._namespace = ""  # of the request that is being booked

    def renew(self, state: TreeState) -> None:
        """The cache was emptied, and this is its tree now. What was booked stays; nothing is in flight any more."""
        self._state = state
        self.in_flight = InFlight(state.page_size)

    @property
    def tokens(self) -> list[int]:
        """Booked so far, by cause. Cost: O(causes)."""
        return [booked.count for booked in self._tokens]

    @property
    def evicted(self) -> dict[tuple[int, Tier], int]:
        """Of these tokens the evicted ones, by component (its index) and tier of the pool that was short."""
        return {(pool // 2, Tier(pool % 2)): tokens for pool, tokens in enumerate(self._evicted) if tokens}

    @property
    def short_by(self) -> dict[tuple[int, Tier], list[int]]:
        """The evicted ones by pool, as `evicted`, and by how many pages have left it since: that many more, at most, would have
        kept them. A list by the number's bit length.
        """
        return {(pool // 2, Tier(pool % 2)): sizes for pool, sizes in enumerate(self._short_by) if sizes is not None}

    @property
    def is_on(self) -> bool:
        """Whether misses are booked: the tree remembers what it evicted."""
        return self._state.ghosts is not None

    def book(
        self, key: Key, count: int, found: Match, compute_from: int, unloaded: tuple[int, str | None], in_store: int
    ) -> list[Miss]:
        """Book what a request has to compute, and return what of that lies in pages; see `LeaseMisses` and `causes.misses`."""
        parts = misses_in_pages(self._state, key, count, found, compute_from, unloaded, in_store, self.in_flight)
        self._namespace = key.namespace
        for part in parts:
            self.add(part)
        remainder: i64 = count - 1 - end_of_pages(self._state, count, compute_from)
        if remainder > 0:
            self._count(PAGE_REMAINDER, remainder)
        self._count(LAST_TOKEN, 1)
        return parts

    def parts(self, booked: list[Miss], count: int, compute_from: int) -> list[Miss]:
        """All of what was booked for a prompt."""
        parts = booked.copy()
        add_end(parts, self._state, count, compute_from)
        return parts

    def _count(self, code: i64, tokens: i64) -> None:
        self._tokens[code].count += tokens

    def add(self, miss: Miss) -> None:
        """Book one miss."""
        eviction, detail = miss.eviction, miss.detail
        count = miss.end - miss.begin
        self._count(miss.code, count)
        if eviction is not None:
            pool = 2 * eviction.component + eviction.tier
            self._evicted[pool] = self._evicted[pool] + count
            self._note_shortage(pool, eviction, count)
        if miss.code in (NEVER_SAVED, OTHER_WEIGHTS):
            self._count_namespace((miss.code, detail, self._namespace), count)
        if detail is not None:
            kind = (miss.cause, detail)
            if kind in self.details or len(self.details) < MAX_DETAILS:  # a namespace is one, and there may be any number
                self.details[kind] = self.details.get(kind, 0) + count

    def _count_namespace(self, of: tuple[int, str | None, str], count: int) -> None:
        if of in self.namespaces or len(self.namespaces) < MAX_NAMESPACES:
            self.namespaces[of] = self.namespaces.get(of, 0) + count

    def _note_shortage(self, pool: int, eviction: Eviction, count: int) -> None:
        since = self._state.evicted_pages(eviction.component, eviction.tier) - eviction.evicted_pages
        by_size = self._short_by[pool]
        if by_size is None:
            by_size = self._short_by[pool] = [0] * SIZES
        size = min(since.bit_length(), SIZES - 1)
        by_size[size] = by_size[size] + count
        name = eviction.beneficiary
        if name is None or name == self._namespace:
            return
        if name in self.beneficiaries or len(self.beneficiaries) < MAX_NAMESPACES:
            self.beneficiaries[name] = self.beneficiaries.get(name, 0) + count

    def note_unsaved(self, boundary: Boundary, length: int, reason: str) -> None:
        """At a length on the path to a boundary no window or state was saved."""
        node = self._state.nodes.get(boundary.node)
        if length and self._state.is_gated and node is not None and node.line is not None:
            node.line.owner(length).note_unsaved(length, reason)
