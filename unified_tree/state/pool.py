"""Bookkeeping of one component's pages on one tier: who owns each page, the eviction order, and how many are locked.

A value is in the eviction order exactly while it is evictable: unlocked, and of a path only as a leaf of its tier. So the first
in the order is the next victim, and no search passes over locked values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.nodes.node import Value
from unified_tree.nodes.order import COPIED, KEPT, LEFT, NEEDED, SPARE, STRANDED, Order
from unified_tree.policies.standard_policy import Standard
from unified_tree.policies.table import Guarded
from unified_tree.state.page_set import MAX_PAGES, PageSet
from unified_tree.state.shares import Share, Shares
from unified_tree.terms.errors import PageError
from unified_tree.terms.tier import PAGE_ID_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.declare.component import Component
    from unified_tree.nodes.line import Eviction
    from unified_tree.policies.eviction_policy import EvictionPolicy
    from unified_tree.terms.tier import Tier


class Pool:
    """One component's pages on one tier.

    Attributes:
        order: the evictable values, the smallest rank first, which is the next victim unless the policy chooses another. With
            tenants it is empty, and each group has an order of its own in `shares`.
        shares: what groups of namespaces hold of its room, and slot: its place in that room; None without tenants.
        used_pages, protected_pages, stranded_pages: pages the tree holds here; of these the locked ones; of these those that no
            boundary (a length one can resume from) needs. Exact at all times, but the last only for settled nodes
            (`UnifiedTree.settle`).
        copied_pages: those of values that are on the other tier too.
        evicted_pages: pages that left, ever.
        unread_pages: on host: of these the ones of values of which nothing was ever copied back.
        copied_first: after stranded and spare values, evict those with a copy on the other tier before sole copies.
        is_selective: whether the policy is an AdmissionPolicy, which may refuse windows and states.
        weighs_copies: whether the policy's ranks depend on copies.
        last_eviction: what is remembered of the last one; None if nothing went, or nothing is remembered.
    """

    __slots__ = (
        "_policy",
        "component",
        "copied_first",
        "copied_pages",
        "evicted_pages",
        "is_path",
        "is_selective",
        "last_eviction",
        "ledger",
        "order",
        "protected_pages",
        "shares",
        "slot",
        "stranded_pages",
        "tier",
        "unread_pages",
        "used_pages",
        "weighs_copies",
    )

    def __init__(self, component: Component, tier: Tier, policy: Standard, page_count: int | None) -> None:
        self.component = component
        self.is_path = component.coverage.is_path
        self.tier = tier
        self._policy = policy
        self.is_selective = isinstance(policy, Guarded) and policy.is_selective
        self.ledger = PageLedger(component.name, page_count)
        self.order = Order()
        self.shares: Shares | None = None
        self.slot = 0
        self.used_pages = 0
        self.protected_pages = 0
        self.stranded_pages = 0
        self.copied_pages = 0
        self.evicted_pages = 0
        self.unread_pages = 0
        self.copied_first = False
        self.weighs_copies = policy.weighs_copies
        self.last_eviction: Eviction | None = None

    @property
    def policy(self) -> EvictionPolicy | Standard:
        """The policy that ranks its values, as it was given."""
        policy = self._policy
        return policy.policy if isinstance(policy, Guarded) else policy

    @property
    def policy_failures(self) -> int:
        """How often a custom policy raised or returned an invalid rank; see EvictionPolicy."""
        policy = self._policy
        return policy.failures if isinstance(policy, Guarded) else 0

    @property
    def last_policy_failure(self) -> str | None:
        """The reason of the last failure; None if there was none."""
        policy = self._policy
        return policy.last_failure if isinstance(policy, Guarded) else None

    @property
    def declined_values(self) -> int:
        """How many windows and states a custom policy refused."""
        policy = self._policy
        return policy.declined if isinstance(policy, Guarded) else 0

    @property
    def evictable_pages(self) -> int:
        """Pages that evicting could free now."""
        return self.used_pages - self.protected_pages

    def add_evictable(self, value: Value) -> None:
        """Add an evictable value to the eviction order. Cost: O(log n), O(1) for one that was just used."""
        policy = self._policy
        rank, second_rank = policy.rank(value)
        self._enter(value, rank, second_rank)

    def _enter(self, value: Value, rank: float, second_rank: float) -> None:
        """Add a value to its order at a rank."""
        shares = self.shares
        if shares is None:
            self.order.add(value, self.urgency(value), rank, second_rank, -value.node.end)
        else:
            share = shares.of(value)
            share.orders[self.slot].add(value, self.urgency(value), rank, second_rank, -value.node.end)
            if not share.is_placed:
                shares.place(share)
        self._policy.placed(value)

    def urgency(self, value: Value) -> int:
        """The class that precedes all ranks: STRANDED, then SPARE, then LEFT, then COPIED if `copied_first`, then the others,
        and KEPT last.
        """
        if value.stranded:
            return STRANDED
        if value.spare:
            return SPARE
        if value.holds:
            for hold in value.holds:
                if hold.keeps:
                    return KEPT
        if value.demoted:
            return LEFT
        claim = value.node.claim
        if claim is not None and not claim.live:
            return LEFT
        return COPIED if self.copied_first and value.copied else NEEDED

    def remove_evictable(self, value: Value) -> None:
        """Remove a value from the eviction order. Cost: O(1) expected."""
        shares = self.shares
        if shares is None:
            self.order.discard(value)
        elif value.is_placed:
            share = shares.of(value)
            order = share.orders[self.slot]
            order.discard(value)
            if not order.count:
                shares.place(share)

    def hold(self, value: Value, page_count: int) -> None:
        """The tree holds so many pages more of a value, or less. Cost: O(1); with tenants O(log groups)."""
        self.used_pages += page_count
        if self.shares is not None:
            self.shares.hold(value, self.slot, page_count)

    def orders(self) -> list[Order]:
        """All eviction orders: its own, or one for each group that holds something. Cost: O(groups)."""
        return [self.order] if self.shares is None else [share.orders[self.slot] for share in self.shares.held()]

    def clear_orders(self) -> None:
        """Forget all evictable values, each of which must `leave_order`."""
        self.order.clear()
        if self.shares is not None:
            self.shares.clear(self.slot)

    def reorder(self, value: Value) -> None:
        """Move a value whose rank may have changed, if it is in the order. Cost: O(log n)."""
        if value.is_placed:
            self._leave(value)
            self.add_evictable(value)

    def reclass(self, value: Value) -> None:
        """Move a value whose class may have changed, if it is in the order. Cost: O(1) if it has not, else O(log n)."""
        if value.is_placed and value.urgency != self.urgency(value):
            self._leave(value)
            self.add_evictable(value)

    def _leave(self, value: Value) -> None:
        """Remove a value from its order, to which it is added again."""
        if self.shares is None:
            self.order.discard(value)
        else:
            self.shares.of(value).orders[self.slot].discard(value)

    def keep_rank(self, value: Value, rank: float, second_rank: float) -> None:
        """Give a value that was locked and unlocked by a refused call the rank that it had, if it is in the order."""
        if value.is_placed and (value.rank, value.second_rank) != (rank, second_rank):
            self._leave(value)
            self._enter(value, rank, second_rank)

    @property
    def compares_across_pools(self) -> bool:
        """Whether its policy's ranks mean the same in all pools."""
        return self._policy.compares_across_pools

    def standing(self, value: Value) -> tuple[float, float]:
        """How a placed value compares with those of other pools; see `Standard.standing`."""
        return self._policy.standing(value)

    def admits(self, value: Value) -> bool:
        """Whether the policy lets an insert keep a window or a state."""
        policy = self._policy
        return not isinstance(policy, Guarded) or not policy.is_selective or policy.admits(value)

    def created(self, value: Value) -> None:
        """Tell the policy of a new value."""
        self._policy.touched(value)

    def touched(self, value: Value) -> None:
        """A value was used. Cost: as `reorder`."""
        self._policy.touched(value)
        if value.is_placed and (self._policy.by_use or value.urgency != self.urgency(value)):
            if self.shares is None:  # as `_leave`, at each hit
                self.order.discard(value)
            else:
                self._leave(value)
            self.add_evictable(value)

    def went(self, value: Value, is_whole: bool) -> None:
        """Tell the policy of a victim, which goes, or loses its end and is ranked again."""
        self._policy.went(value, is_whole)

    def is_where_it_ranks(self, value: Value) -> bool:
        """Whether a value is at its right place in the order; of a custom policy, or one that chooses, only by urgency."""
        if isinstance(self._policy, Guarded) or self._policy.chooses:
            return value.urgency == self.urgency(value)
        return (value.urgency, value.rank, value.second_rank) == (self.urgency(value), *self._policy.rank(value))

    def next_victim(self) -> Value | None:
        """The evictable value that goes next, which stays in the order; None if there is none.

        Cost: that of the policy's choice; O(1) for the smallest rank. With tenants, of so many choices as groups are compared.
        """
        return self._first_of(self.order) if self.shares is None else self.first_of_groups(self.shares.givers(self.slot))

    def _first_of(self, order: Order) -> Value | None:
        first = order.first
        if not isinstance(first, Value):
            return None
        return first if first.urgency <= SPARE else self._policy.next_victim(order, first)

    def first_of_groups(self, shares: list[Share]) -> Value | None:
        """The next victim of several groups in this pool: by urgency, then as the policy compares them; None for none."""
        return self._best(shares, likely=False)

    def _best(self, shares: list[Share], *, likely: bool) -> Value | None:
        best: Value | None = None
        best_standing = (0.0, 0.0)
        for share in shares:
            order = share.orders[self.slot]
            first = self._likely_of(order) if likely else self._first_of(order)
            if first is None:
                continue
            standing = self._policy.standing(first)
            if best is None or (first.urgency, standing, first.depth) < (best.urgency, best_standing, best.depth):
                best, best_standing = first, standing
        return best

    def surplus_pages(self, value: Value) -> int:
        """How many pages a value's group holds beyond its share of the room, rounded up; 0 without tenants. Cost: O(1)."""
        if self.shares is None:
            return 0
        return -(-self.shares.of(value).excess // self.shares.page_units[self.slot])

    def likely_victim(self) -> Value | None:
        """The value that would go next; None if there is none, or the policy cannot say it. Changes nothing. Cost: that of the
        policy's answer; O(1) for the smallest rank.
        """
        return self._likely_of(self.order) if self.shares is None else self._best(self.shares.givers(self.slot), likely=True)

    def _likely_of(self, order: Order) -> Value | None:
        first = order.first
        if not isinstance(first, Value):
            return None
        return first if first.urgency <= SPARE else self._policy.likely_victim(order, first)


class PageLedger:
    """Which pages of a pool the tree owns; grows on demand if the pool's size was not given."""

    __slots__ = ("_in_flight_pages", "_name", "_owned", "page_count")

    def __init__(self, name: str, page_count: int | None) -> None:
        self._name = name
        self.page_count = page_count
        self._owned = PageSet(page_count if page_count is not None else 1024)
        self._in_flight_pages = 0

    def take_free(self, ids: NDArray[np.int64]) -> bool:
        """Mark these pages as the tree's, if every id is within the current range, distinct, and not the tree's; returns
        whether they are. Cost: O(len(ids)).
        """
        return self._owned.add_new(ids)

    def take(self, ids: NDArray[np.int64]) -> None:
        """Mark these pages as the tree's. Raises as `check`, with nothing changed. Cost: O(len(ids))."""
        if not self.take_free(ids):
            self.check(ids)  # says what is wrong, or has more ids from now on
            self.acquire(ids)

    def check(self, ids: NDArray[np.int64]) -> None:
        """Raise PageError unless every id is in range, distinct, and not the tree's. Cost: O(len(ids))."""
        if self._owned.all_are(ids, members=False):
            return
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0:
            raise PageError(f"{self._name}: page ids must be zero or more, got {lowest}")
        if highest >= self._owned.capacity:
            self._grow(highest)
            self.check(ids)
            return
        owned = [page for page in ids.tolist() if self._owned.contains(page)]
        if owned:
            raise PageError(f"{self._name}: page {owned[0]} is already owned by the tree")
        unique, counts = np.unique(ids, return_counts=True)
        raise PageError(f"{self._name}: page {int(unique[counts > 1][0])} is given twice")

    def check_few(self, ids: list[int]) -> None:
        """As `check`, for a short sequence that is not an array."""
        if not self._owned.few_are(ids, members=False):
            self.check(np.asarray(ids, np.int64))

    def _grow(self, highest: int) -> None:
        if self.page_count is not None:
            raise PageError(f"{self._name}: page ids must be below {self.page_count}, got {highest}")
        if highest >= MAX_PAGES:
            raise PageError(f"{self._name}: page id {highest} is no dense index; declare page_counts for a pool this large")
        self._owned.grow(highest + 1)

    def owns(self, page: int) -> bool:
        """Whether the tree owns this page."""
        return self._owned.contains(page)

    def acquire(self, pages: NDArray[np.int64] | bytes) -> None:
        """Mark these pages, which were checked, as the tree's."""
        self._owned.add(pages)

    def release(self, pages: NDArray[np.int64] | bytes) -> None:
        """Mark these pages as free."""
        self._owned.discard(pages)

    def claim(self, pages: bytes) -> None:
        """Mark these pages as a transfer's until it ends. Raises as `check`, with nothing changed."""
        if not self._owned.add_free(pages):
            self.check(np.frombuffer(pages, np.int64))
            self._owned.add(pages)
        self._in_flight_pages += len(pages) // PAGE_ID_BYTES

    def unclaim(self, pages: bytes) -> None:
        """The transfer that claimed these pages ended, and they are free."""
        self._owned.discard(pages)
        self._in_flight_pages -= len(pages) // PAGE_ID_BYTES

    def landing(self, pages: bytes) -> None:
        """The transfer that claimed these pages has put its state there: they are the tree's."""
        self._in_flight_pages -= len(pages) // PAGE_ID_BYTES

    @property
    def in_flight_pages(self) -> int:
        """How many pages are the targets of open transfers."""
        return self._in_flight_pages

    def owned_count(self) -> int:
        """How many pages the tree's nodes own. Cost: O(pool); for checks."""
        return self._owned.count() - self._in_flight_pages
