"""Host pages for prefetches: how long a prefix there is room for, and how much of every pool prefetches hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.storage_tier.fetch import Fetch
from unified_tree.errors import OutOfPagesError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unified_tree.controllers.storage_tier.stored_composition import StoredComposition
    from unified_tree.controllers.tier_pages import TierPages

Pages = Mapping[str, "NDArray[np.int64]"]


class PrefetchRoom:
    """The share of the host pools that open prefetches may hold.

    Args:
        composition: which components there are.
        host: their host pools.
        most_share: of every pool.
    """

    def __init__(self, composition: StoredComposition, host: TierPages, most_share: float) -> None:
        self._composition = composition
        self._host = host
        self._most_share = most_share
        self._required = {access.name for access in (*composition.paths, *composition.trailing) if access.required}
        self._held = dict.fromkeys(host.allocators, 0)

    def take_longest(self, base_pages: int, lengths: Sequence[int]) -> tuple[int, Pages] | None:
        """Pages for the longest of some lengths, ascending, that there is room for; None if there is none.

        Optional components that are short get none. Evicts what it must. Cost: O(log lengths), and that of allocating.
        """
        count = bisect_left(lengths, True, key=lambda length: not self._fits(base_pages, length))
        while count:
            pages = self._try(base_pages, lengths[count - 1])
            if pages is not None:
                self._count(pages, 1)
                return lengths[count - 1], pages
            count //= 2  # what could be evicted stands above what is locked
        return None

    def give_back(self, pages: Pages) -> None:
        """Pages that were taken go back to their pools."""
        self._count(pages, -1)
        self._host.give_back(pages)

    def hand_over(self, pages: Pages) -> None:
        """Pages that were taken belong to somebody else from now on."""
        self._count(pages, -1)

    def _count(self, pages: Pages, sign: int) -> None:
        for name, ids in pages.items():
            self._held[name] += sign * ids.size

    def _fits(self, base_pages: int, length_pages: int) -> bool:
        needs = Fetch.needs(self._composition, base_pages, length_pages)
        return all(self._has_room(name, count) for name, count in needs.items() if name in self._required)

    def _has_room(self, name: str, count: int) -> bool:
        total = self._host.allocators[name].page_count
        is_over = total is not None and self._held[name] + count > self._most_share * total
        return not is_over and self._host.fits(name, count)

    def _try(self, base_pages: int, length_pages: int) -> Pages | None:
        needs = Fetch.needs(self._composition, base_pages, length_pages)
        wanted = {name: count for name, count in needs.items() if name in self._required or self._has_room(name, count)}
        try:
            return self._host.allocate_all(wanted)
        except OutOfPagesError:
            return None
