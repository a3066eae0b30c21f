"""Host pages for prefetches: how long a prefix there is room for, and how much of every pool prefetches may come to hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.storage_tier.fetch import Fetch
from unified_tree.errors import OutOfPagesError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.host.tier_pages import TierPages
    from unified_tree.controllers.storage_tier.stored_composition import StoredComposition

Pages = Mapping[str, "NDArray[np.int64]"]


class PrefetchRoom:
    """The share of the host pools that open prefetches may hold.

    A prefetch claims first, which takes nothing from anybody but other prefetches; it takes pages when it is about to read.

    Args:
        composition: which components there are.
        host: their host pools.
        max_share: of every pool.
    """

    def __init__(self, composition: StoredComposition, host: TierPages, max_share: float) -> None:
        self._composition = composition
        self._host = host
        self._max_share = max_share
        self._required = {access.name for access in (*composition.paths, *composition.trailing) if access.required}
        self._claimed = dict.fromkeys(host.allocators, 0)
        self._owed = dict.fromkeys(host.allocators, 0)

    def claim_longest(self, base_pages: int, lengths: Sequence[int]) -> tuple[int, dict[str, int]] | None:
        """Claim pages for the longest of some lengths, ascending, that there is room for; None if there is none.

        Optional components that are short get none. Evicts nothing. Cost: O(log lengths).
        """
        count = bisect_left(lengths, True, key=lambda length: not self._fits(base_pages, length))
        if not count:
            return None
        length = lengths[count - 1]
        needs = Fetch.needs(self._composition, base_pages, length)
        claim = {name: size for name, size in needs.items() if name in self._required or self._has_room(name, size)}
        self._count(self._claimed, claim, 1)
        self._count(self._owed, claim, 1)
        return length, claim

    def take_path(self, names: Sequence[str], page_count: int) -> Pages | None:
        """So many pages of each of some paths, or as many as can be had, half as many again and again; None for none.

        Optional ones that are short get none. Evicts what it must. Cost: that of allocating.
        """
        while page_count:
            pages = self.take(dict.fromkeys(names, page_count))
            if pages is not None:
                return pages
            page_count //= 2  # what could be evicted stands above what is locked
        return None

    def take(self, needs: Mapping[str, int]) -> Pages | None:
        """Pages that were claimed; None if a required component is short after all. Optional ones that are get none."""
        wanted = {name: count for name, count in needs.items() if name in self._required or self._host.fits(name, count)}
        try:
            pages = self._host.allocate_all(wanted)
        except OutOfPagesError:
            return None
        self._count(self._owed, wanted, -1)
        return pages

    def give_back(self, pages: Pages) -> None:
        """Pages that were taken go back to their pools."""
        self._host.free_all(pages)

    def release(self, claim: Mapping[str, int], taken: Pages) -> None:
        """A prefetch takes nothing more, and what it took was given back or belongs to somebody else."""
        self._count(self._claimed, claim, -1)
        self._count(self._owed, claim, -1)
        self._count(self._owed, {name: ids.size for name, ids in taken.items()}, 1)

    @staticmethod
    def _count(counts: dict[str, int], pages: Mapping[str, int], sign: int) -> None:
        for name, count in pages.items():
            counts[name] += sign * count

    def _fits(self, base_pages: int, length_pages: int) -> bool:
        needs = Fetch.needs(self._composition, base_pages, length_pages)
        return all(self._has_room(name, count) for name, count in needs.items() if name in self._required)

    def _has_room(self, name: str, count: int) -> bool:
        total = self._host.allocators[name].page_count
        is_over = total is not None and self._claimed[name] + count > self._max_share * total
        return not is_over and self._host.fits(name, count + self._owed[name])
