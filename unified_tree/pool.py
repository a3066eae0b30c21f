"""The books of one component's pages on one tier: who owns which page, in what order they would go, how many are pinned.

The eviction order is a sorted list with one entry a value. Entries are corrected lazily: a value that was touched, locked
or grew a child keeps its old place until it comes up as a victim, and only then is moved or dropped (it is put back when it
is unlocked or becomes a leaf). A heap would leave stale entries that need a sweep; a linked list cannot take a node that
inherits an older recency from its last child.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from sortedcontainers import SortedList

from unified_tree.component import Path
from unified_tree.errors import PageError
from unified_tree.page_set import PageSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.component import Component
    from unified_tree.node import Tier, Value
    from unified_tree.policies import EvictionPolicy


STRANDED: Final = 0
COPIED: Final = 1
NEEDED: Final = 2


class Pool:
    """One component's pages on one tier.

    Attributes:
        used_pages, protected_pages, stranded_pages: pages the tree holds here; of these the pinned; of these what no
            boundary needs. Exact at all times.
        copied_pages: those of values that are on the other tier too.
        copied_first: after what no boundary needs, evict what is on the other tier too before sole copies.
    """

    __slots__ = (
        "component",
        "copied_first",
        "copied_pages",
        "entries",
        "is_path",
        "ledger",
        "policy",
        "protected_pages",
        "sequence",
        "stranded_pages",
        "tier",
        "used_pages",
    )

    def __init__(self, component: Component, tier: Tier, policy: EvictionPolicy, page_count: int | None) -> None:
        self.component = component
        self.is_path = isinstance(component.coverage, Path)
        self.tier = tier
        self.policy = policy
        self.ledger = PageLedger(component.name, page_count)
        self.entries = SortedList()
        self.sequence = 0
        self.used_pages = 0
        self.protected_pages = 0
        self.stranded_pages = 0
        self.copied_pages = 0
        self.copied_first = False

    @property
    def evictable_pages(self) -> int:
        """Pages that evicting could free now."""
        return self.used_pages - self.protected_pages

    def enter(self, value: Value) -> None:
        """Give a value its place in the eviction order. Cost: O(log n)."""
        self.sequence += 1
        value.entry = (self.urgency(value), self.policy.rank(value), -value.node.end, self.sequence, value)
        self.entries.add(value.entry)

    def urgency(self, value: Value) -> int:
        """What goes before all ranks: STRANDED values first, then COPIED ones if the pool says so, then the others."""
        if value.stranded:
            return STRANDED
        return COPIED if self.copied_first and value.copied else NEEDED

    def leave(self, value: Value) -> None:
        """Take a value out of the eviction order. Cost: O(log n)."""
        if value.entry is not None:
            self.entries.remove(value.entry)
            value.entry = None

    def moved(self, value: Value) -> None:
        """The value's rank may have fallen: move its entry, if it has one. Cost: O(log n)."""
        if value.entry is not None:
            self.leave(value)
            self.enter(value)

    def touched(self, value: Value) -> None:
        """Tell an eager policy of a use. A lazy one need not hear of it."""
        self.policy.touched(value)
        self.moved(value)

    def coldest_sole(self, page_count: int, look_at: int, after: object | None) -> tuple[list[Value], object | None]:
        """Values without a copy that would be the next victims, of about so many pages, and where to go on; none that is locked
        or being copied.

        Entries that are out of date are put right on the way.
        """
        found: list[Value] = []
        outdated: list[Value] = []
        cursor: object | None = None
        begin = (COPIED if self.copied_first else STRANDED,) if after is None else after
        for entry in self.entries.irange(begin, inclusive=(False, True)):
            value: Value = entry[4]
            if value.stranded or value.copied or value.locks or value.copying:
                continue
            if page_count <= 0 or look_at <= 0:
                break
            cursor = entry
            look_at -= 1
            if (self.urgency(value), self.policy.rank(value)) > entry[:2]:
                outdated.append(value)
            else:
                found.append(value)
                page_count -= value.page_count
        else:
            cursor = None
        for value in outdated:
            self.moved(value)
        return found, cursor

    def pop_victim(self) -> Value | None:
        """Take the first evictable value out of the order; None if there is none. Cost: O(log n), amortized over touches."""
        entries = self.entries
        while entries:
            entry = entries.pop(0)
            value: Value = entry[4]
            value.entry = None
            if value.locks or not self.is_removable(value):
                continue
            if (self.urgency(value), self.policy.rank(value)) > entry[:2]:
                self.enter(value)
                continue
            return value
        return None

    def is_removable(self, value: Value) -> bool:
        """Whether the tree stays closed without this value: only a leaf of its tier may go from a path. As both tiers are
        closed, whatever is not pinned can go sooner or later."""
        return not self.is_path or value.children == 0


MOST_UNDECLARED_PAGES = 1 << 32


class PageLedger:
    """Which pages of a pool the tree owns; grown on demand where the pool's size was not given."""

    __slots__ = ("_in_flight_pages", "_name", "_owned", "page_count")

    def __init__(self, name: str, page_count: int | None) -> None:
        self._name = name
        self.page_count = page_count
        self._owned = PageSet(page_count if page_count is not None else 1024)
        self._in_flight_pages = 0

    def are_free(self, ids: NDArray[np.int64]) -> bool:
        """Whether every id is in range so far, given once, and not the tree's. Cost: O(len(ids))."""
        return self._owned.all_are(ids, members=False)

    def check(self, ids: NDArray[np.int64]) -> None:
        """Raise PageError unless every id is in range, given once, and not the tree's. Cost: O(len(ids))."""
        if self.are_free(ids):
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
        """As `check`, for a handful of ids that are no array."""
        if not self._owned.few_are(ids, members=False):
            self.check(np.asarray(ids, np.int64))

    def _grow(self, highest: int) -> None:
        if self.page_count is not None:
            raise PageError(f"{self._name}: page ids must be below {self.page_count}, got {highest}")
        if highest > MOST_UNDECLARED_PAGES:
            raise PageError(f"{self._name}: page id {highest} is no dense index; declare page_counts for a pool this large")
        self._owned.grow(highest + 1)

    def owns(self, page: int) -> bool:
        """Whether the tree owns this page."""
        return self._owned.contains(page)

    def take(self, pages: bytes) -> None:
        """A value takes these pages, which were checked."""
        self._owned.add_bytes(pages)

    def give(self, pages: bytes) -> None:
        """A value gives these pages up."""
        self._owned.discard_bytes(pages)

    def claim(self, ids: NDArray[np.int64]) -> None:
        """A transfer takes these pages, which were checked, until it ends."""
        self._owned.add(ids)
        self._in_flight_pages += ids.size

    def unclaim(self, ids: NDArray[np.int64]) -> None:
        """The transfer that claimed these pages ended."""
        self._owned.discard(ids)
        self._in_flight_pages -= ids.size

    def owned_count(self) -> int:
        """How many pages the tree's nodes own. Cost: O(pool); for checks."""
        return self._owned.count() - self._in_flight_pages
