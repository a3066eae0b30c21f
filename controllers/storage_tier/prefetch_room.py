"""Host pages for prefetches: how long a prefix fits, and how much of every pool prefetches may use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.pages.shared_tier_pages import SharedTierPages
from unified_tree.terms.errors import OutOfPagesError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.pages.tier_pages import TierPages
    from unified_tree.controllers.storage_tier.stored_composition import StoredComposition


class PrefetchRoom:
    """The share of the host pools that open prefetches may use.

    Args:
        composition: which components there are.
        host: their host pools.
        max_share: of every pool.

    Attributes:
        claims: those that are open.
    """

    def __init__(self, composition: StoredComposition, host: TierPages, max_share: float) -> None:
        self._composition = composition
        self._host = host
        self._max_share = max_share
        self._shared = host.shared if isinstance(host, SharedTierPages) else None
        self._required = {access.name for access in (*composition.paths, *composition.trailing) if access.required}
        self._claimed = dict.fromkeys(host.allocators, 0)
        self._owed = dict.fromkeys(host.allocators, 0)  # of these not taken yet
        self.claims: set[PrefetchClaim] = set()

    def claim_longest(self, base_pages: int, lengths: Sequence[int]) -> PrefetchClaim | None:
        """Claim pages for the longest of some ascending lengths that fits; None if none fits.

        Optional components that are short get none. Evicts nothing. Cost: O(log lengths).
        """
        count = bisect_left(lengths, True, key=lambda length: not self._fits(base_pages, length))
        if not count:
            return None
        length = lengths[count - 1]
        needs = self._needs(base_pages, length)
        sizes = self._with_optional(needs, self._has_room)
        self._add(sizes, 1, self._claimed, self._owed)
        claim = PrefetchClaim(self, length, sizes)
        self.claims.add(claim)
        return claim

    def allocate(self, needs: Mapping[str, int]) -> dict[str, NDArray[np.int64]] | None:
        """Allocate claimed pages; None if a required component is short after all. Short optional ones get none."""
        wanted = self._with_optional(needs, self._host.fits)
        try:
            pages = self._host.allocate_all(wanted)
        except OutOfPagesError:
            return None
        self._add(wanted, -1, self._owed)
        return pages

    def release(self, claim: PrefetchClaim) -> None:
        """End a claim and free its remaining pages. Idempotent."""
        if claim in self.claims:
            self.claims.remove(claim)
            self._host.free_all(claim.pages)
            self._add(claim.sizes, -1, self._claimed)
            self._add(claim.owed, -1, self._owed)

    def trailing_needs(self, length_pages: int) -> dict[str, int]:
        """Host pages by component for the windows and states of a length, or of a shorter one if less arrives."""
        size = self._composition.page_size
        return {access.name: access.most_window_pages(length_pages, size) for access in self._composition.trailing}

    def _needs(self, base_pages: int, length_pages: int) -> dict[str, int]:
        path_pages = max(0, length_pages - base_pages)
        return {access.name: path_pages for access in self._composition.paths} | self.trailing_needs(length_pages)

    @staticmethod
    def _add(pages: Mapping[str, int], sign: int, *to: dict[str, int]) -> None:
        for counts in to:
            for name, count in pages.items():
                counts[name] += sign * count

    def _fits(self, base_pages: int, length_pages: int) -> bool:
        needs = self._needs(base_pages, length_pages)
        return self._has_room({name: count for name, count in needs.items() if name in self._required})

    def _with_optional(self, needs: Mapping[str, int], fit: Callable[[Mapping[str, int]], bool]) -> dict[str, int]:
        """The needs of required components, and of the optional ones those that fit beside them."""
        wanted = {name: count for name, count in needs.items() if name in self._required}
        for name, count in needs.items():
            if name not in wanted and fit({**wanted, name: count}):
                wanted[name] = count
        return wanted

    def _has_room(self, needs: Mapping[str, int]) -> bool:
        if self._shared is not None:
            budget = self._shared.budget
            if budget.blocks(self._claimed) + budget.blocks(needs) > self._max_share * budget.block_count:
                return False
            return self._host.fits({name: owed + needs.get(name, 0) for name, owed in self._owed.items()})
        for name, count in needs.items():
            total = self._host.allocators[name].page_count
            if total is not None and self._claimed[name] + count > self._max_share * total:
                return False
        return self._host.fits({name: count + self._owed[name] for name, count in needs.items()})


class PrefetchClaim:
    """A prefetch's claim to a number of host pages, and the pages it has allocated.

    A claim only limits other prefetches. Allocating may evict.

    Attributes:
        sizes: pages claimed, by component; `owed`: those of them not allocated yet.
        length_pages: the length that fits.
        pages: allocated pages that are not the tree's, by component.
    """

    def __init__(self, room: PrefetchRoom, length_pages: int, sizes: Mapping[str, int]) -> None:
        self._room = room
        self._has_trailing = False
        self.sizes = sizes
        self.owed = dict(sizes)
        self.length_pages = length_pages
        self.pages: dict[str, NDArray[np.int64]] = {}

    def allocate_path(self, names: Sequence[str], page_count: int) -> int:
        """Allocate `page_count` more pages of each of some paths, or half as many, and so on; returns how many, 0 for none.

        Optional ones that are short get none.
        """
        while page_count:
            if self._allocate(dict.fromkeys(names, page_count)):
                return page_count
            page_count //= 2  # what could be evicted stands above what is locked
        return 0

    def allocate_trailing(self, length_pages: int) -> bool:
        """Allocate the pages for the windows and states of a length, once; they suffice for shorter lengths. False if there are
        none.
        """
        if not self._has_trailing:
            needs = self._room.trailing_needs(length_pages)
            self._has_trailing = self._allocate({name: count for name, count in needs.items() if name in self.sizes})
        return self._has_trailing

    def _allocate(self, needs: Mapping[str, int]) -> bool:
        pages = self._room.allocate(needs)
        if pages is None:
            return False
        for name, ids in pages.items():
            before = self.pages.get(name)
            self.pages[name] = ids if before is None else np.concatenate((before, ids))
            self.owed[name] -= ids.size
        return True

    def submit(self, pages: Mapping[str, NDArray[np.int64]]) -> None:
        """Pass the first pages of some components to the tree."""
        for name, ids in pages.items():
            self.pages[name] = self.pages[name][ids.size :]
