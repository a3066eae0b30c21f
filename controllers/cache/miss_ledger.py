"""The ledger of misses: each prompt token that a lease has to compute, booked under exactly one cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.memory.ages import Bucket, bit_length
from unified_tree.misses.causes import (
    LAST_TOKEN,
    LOAD_FAILED,
    NEVER_SAVED,
    OTHER_WEIGHTS,
    PAGE_REMAINDER,
    Flight,
    InFlight,
    Miss,
    Misses,
    add_end,
    end_of_pages,
    find_misses,
    listed,
)
from unified_tree.misses.miss_cause import MissCause
from unified_tree.nodes.order import KEPT, LEFT
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.declare.keys import Key
    from unified_tree.misses.causes import StoreLoss
    from unified_tree.nodes.line import Eviction
    from unified_tree.state.tree_state import TreeState
    from unified_tree.terms.results import Boundary, Match

DEVICE: Final = Tier.DEVICE
SIZES: Final = 48
MAX_NAMESPACES: Final = 256
MAX_DETAILS: Final = 256
HINTED: Final = {LEFT: "superseded, demoted, or of an ended session", KEPT: "kept by a hint, and its pool was in need"}
"""Details of the evicted ones of two classes."""


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
        "_parts",
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
        self._evicted = [Bucket() for _ in range(2 * len(state.components))]
        self._short_by: list[list[Bucket] | None] = [None] * (2 * len(state.components))
        self._parts = Misses()  # empty but while a request is being booked
        self.beneficiaries: dict[str, int] = {}
        self.namespaces: dict[tuple[int, str | None, str], int] = {}
        self.details: dict[tuple[MissCause, str], int] = {}
        self.in_flight = InFlight(state.page_size)
        self._namespace = ""  # of the request that was booked last

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
        return {(pool // 2, Tier(pool % 2)): booked.count for pool, booked in enumerate(self._evicted) if booked.count}

    @property
    def short_by(self) -> dict[tuple[int, Tier], list[int]]:
        """The evicted ones by pool, as `evicted`, and by how many pages have left it since: that many more, at most, would have
        kept them. A list by the number's bit length.
        """
        known = [(pool, sizes) for pool, sizes in enumerate(self._short_by) if sizes is not None]
        return {(pool // 2, Tier(pool % 2)): [booked.count for booked in sizes] for pool, sizes in known}

    @property
    def is_on(self) -> bool:
        """Whether misses are booked: the tree remembers what it evicted."""
        return self._state.ghosts is not None

    def book(
        self,
        key: Key,
        namespace: str,
        count: int,
        found: Match,
        compute_from: int,
        unloaded: tuple[int, str | None],
        in_store: int,
        loss: StoreLoss | None = None,
    ) -> Miss | None:
        """Book what a request has to compute, and return the first of what of that lies in pages; see `LeaseMisses` and
        `causes.find_misses`.
        """
        state, parts = self._state, self._parts
        self._namespace = namespace
        parts.take()  # whatever an error left
        end: i64 = find_misses(parts, state, key, count, found, compute_from, unloaded, in_store, self.in_flight, loss)
        first = parts.take()
        miss = first
        while miss is not None:
            self.add(miss)
            miss = miss.next
        remainder: i64 = count - 1 - end
        if remainder > 0:
            self._tokens[PAGE_REMAINDER].count += remainder
        self._tokens[LAST_TOKEN].count += 1
        return first

    def parts(self, booked: Miss | None, count: int, compute_from: int) -> list[Miss]:
        """All of what was booked for a prompt."""
        end = Misses()
        add_end(end, end_of_pages(self._state, count, compute_from), count)
        return [*listed(booked), *listed(end.first)]

    def add(self, miss: Miss) -> None:
        """Book one miss."""
        code: i64 = miss.code
        count: i64 = miss.end - miss.begin
        self._tokens[code].count += count
        eviction, detail = miss.eviction, miss.detail
        if eviction is not None:
            self._add_evicted(eviction, count)
            if detail is None:
                detail = HINTED.get(eviction.urgency)
        if code in (NEVER_SAVED, OTHER_WEIGHTS):
            of = (miss.code, detail, self._namespace)
            if of in self.namespaces or len(self.namespaces) < MAX_NAMESPACES:
                self.namespaces[of] = self.namespaces.get(of, 0) + count
        if detail is not None:
            kind = (miss.cause, detail)
            if kind in self.details or len(self.details) < MAX_DETAILS:  # a namespace is one, and there may be any number
                self.details[kind] = self.details.get(kind, 0) + count

    def _add_evicted(self, eviction: Eviction, count: i64) -> None:
        """Book tokens that were evicted: of which pool, how much larger it would have to be, and for whom they went."""
        component, tier = eviction.component, eviction.tier
        pool: i64 = component
        pool = 2 * pool if tier is DEVICE else 2 * pool + 1
        self._evicted[pool].count += count
        sizes = self._short_by[pool]
        if sizes is None:
            sizes = self._short_by[pool] = [Bucket() for _ in range(SIZES)]
        left: i64 = self._state.evicted_pages(component, tier) - eviction.evicted_pages
        size: i64 = bit_length(left)
        sizes[min(size, SIZES - 1)].count += count
        name = eviction.beneficiary
        if name is None or name == self._namespace:
            return
        if name in self.beneficiaries or len(self.beneficiaries) < MAX_NAMESPACES:
            self.beneficiaries[name] = self.beneficiaries.get(name, 0) + count

    def note_unsaved(self, boundary: Boundary, length: int, reason: str) -> None:
        """At a length on the path to a boundary no window or state was saved."""
        node = self._state.nodes.get(boundary.node)
        if length and self._state.layout.is_gated and node is not None and node.line is not None:
            node.line.owner(length).note_unsaved(length, reason)


@mypyc_attr(acyclic=True, free_list_len=1)
class LeaseMisses:
    """The misses of one lease, and its prompt while that is under way.

    Args:
        found: the match that it was admitted by.
        unloaded: why what the host has was not loaded, if it was not.
    """

    __slots__ = ("_booked", "_compute_from", "_count", "_failed", "_flight", "_found", "_known", "_unloaded")

    def __init__(self, found: Match, unloaded: tuple[int, str | None]) -> None:
        self._found: Match | None = found
        self._unloaded = unloaded
        self._flight: Flight | None = None
        self._count = 0
        self._compute_from = 0
        self._known = 0
        self._booked: Miss | None = None
        self._failed: Miss | None = None

    def parts(self, ledger: MissLedger) -> list[Miss]:
        """All misses, ascending and without gaps; empty until they are booked."""
        if self._found is not None:
            return []
        parts = ledger.parts(self._booked, self._count, self._compute_from)
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
        self._count = count
        self._compute_from = compute_from
        self._booked = ledger.book(key, namespace, count, found, compute_from, self._unloaded, in_store, loss)
        self._known = known = max(found.known.length, committed)
        self._flight = ledger.in_flight.begin(key, count, known)

    def published(self, ledger: MissLedger, committed: int) -> None:
        """So many tokens are in the tree now; it may have known more of the prompt before, without a state to resume from."""
        if self._flight is not None and not ledger.in_flight.move(self._flight, max(committed, self._known)):
            self._flight = None

    def unsaved(self, ledger: MissLedger, boundary: Boundary, lengths: dict[int, str]) -> None:
        """States were due at lengths up to a boundary, and were not saved, for these reasons."""
        for length, reason in lengths.items():
            ledger.note_unsaved(boundary, length, reason)

    def load_failed(self, ledger: MissLedger, compute_from: int, tokens: int) -> None:
        """Its load failed, so these tokens before those that it computes are not there after all."""
        self._failed = Miss(LOAD_FAILED, compute_from - tokens, compute_from, None, None)
        ledger.add(self._failed)

    def ended(self, ledger: MissLedger, boundary: Boundary) -> None:
        """The lease ends. If its prompt was not all published, nothing could be saved at its end."""
        if self._flight is not None:
            ledger.in_flight.end(self._flight)
            self._flight = None
            ledger.note_unsaved(boundary, boundary.length, "aborted")
