"""Bookkeeping of one component's pages on one tier: who owns each page, the eviction order, and how many are locked.

A value is in the eviction order exactly while it is evictable: unlocked, and of a path only as a leaf of its tier. So the first
in the order is the next victim, and no search passes over locked values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.nodes.node import Value
from unified_tree.nodes.order import COPIED, KEPT, LEFT, NEEDED, SPARE, STRANDED, Order
from unified_tree.policies.standard_policy import Standard
from unified_tree.policies.table import Guarded
from unified_tree.state.page_set import PageLedger
from unified_tree.state.shares import Share, Shares
from unified_tree.terms.tier import PAGE_ID_BYTES

if TYPE_CHECKING:
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
        used_pages: pages that the tree holds here. `protected_pages`: those of them that are locked.
        stranded_pages: those of `used_pages` that no boundary (a length one can resume from) needs; exact only once all nodes
            are settled (`UnifiedTree.settle`).
        copied_pages: those of values that are on the other tier too.
        evicted_pages: pages that left, ever.
        unread_pages: on host: pages that left with values of which no page was ever copied back to the device.
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
        """How often a custom policy failed; see EvictionPolicy."""
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

    def lock(self, value: Value) -> None:
        """A value is locked, and was not: it is no victim. Cost: as `remove_evictable`."""
        if value.is_placed:
            self.remove_evictable(value)
        self.protected_pages += len(value.pages) // PAGE_ID_BYTES

    def unlock(self, value: Value) -> None:
        """A value is locked no more, and may be a victim. Cost: as `add_evictable`."""
        self.protected_pages -= len(value.pages) // PAGE_ID_BYTES
        if not value.children:
            self.add_evictable(value)

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

    def take(self, value: Value, *, are_taken: bool) -> None:
        """The tree has a new value; its pages may be marked as the tree's before."""
        self.hold(value, len(value.pages) // PAGE_ID_BYTES)
        if not are_taken:
            self.ledger.acquire(value.pages)

    def created(self, value: Value) -> None:
        """A new value is complete, and may be a victim. Cost: as `add_evictable`."""
        if self._policy.hears_uses:
            self._policy.touched(value)
        self.add_evictable(value)

    def remove(self, value: Value) -> None:
        """A value leaves the tree, with all that is counted of it. Cost: as `remove_evictable`, and O(its pages)."""
        page_count = len(value.pages) // PAGE_ID_BYTES
        self.remove_evictable(value)
        self.hold(value, -page_count)
        self.ledger.release(value.pages)
        if value.stranded:
            self.stranded_pages -= page_count
        if value.copied:
            self.copied_pages -= page_count

    def used(self, value: Value, length: int, now: int, hits: int = 1) -> None:
        """A match uses a value, by a prefix of so many tokens; 0 hits for an insert. Cost: as `reorder`."""
        value.touch(length, now, hits)
        value.demoted = False
        if self._policy.hears_uses:
            self._policy.touched(value)
        if value.is_placed and (self._policy.by_use or value.urgency != self.urgency(value)):
            if self.shares is None:  # as `_leave`, at each hit
                self.order.discard(value)
            else:
                self._leave(value)
            self.add_evictable(value)

    def outlives(self, value: Value, copy: Value) -> None:
        """A value stays while its copy on the other tier goes, whose last use counts as one of it. Cost: as `reorder`."""
        if copy.touched > value.touched:
            value.touched = copy.touched
            if self._policy.hears_uses:
                self._policy.touched(value)
            self.reorder(value)

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
