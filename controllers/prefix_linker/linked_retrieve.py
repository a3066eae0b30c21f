"""Pages for what a linker has found: a lease of the link's own, published to the tree once they are filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.prefix_linker.prefix_linker import Span, tokens_of
from unified_tree.terms.errors import OutOfPagesError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.declare.keys import Key


class LinkedRetrieve:
    """A lease that holds pages for the first `end` tokens of a key, and of a window only what is needed there.

    Args:
        cache: gives the pages, evicting as needed.
        key: the prompt.
        end: what was found, more than the cache has.

    Raises OutOfPagesError, with nothing held, where the device has no room.
    """

    def __init__(self, cache: PrefixCache, key: Key, end: int) -> None:
        self._cache = cache
        self._end = end
        self._lease = cache.acquire_to_fill(key, end)
        if self._lease.given_up:
            lacking = ", ".join(self._lease.given_up)
            cache.release(self._lease)
            raise OutOfPagesError(f"a linker fills the pages of all components, and there are none of {lacking}")
        self.begin = self._lease.cached_tokens

    def span(self, pools: Sequence[LinkedPool], salt: str, chunk_tokens: int) -> Span:
        """What the linker is to fill: whole chunks, from the one that the first missing token lies in."""
        first = self.begin // chunk_tokens * chunk_tokens
        pages = {pool.name: self._pages_of(pool, first) for pool in pools}
        return Span(tokens=tokens_of(self._lease.key)[: self._end], salt=salt, begin=self.begin, end=self._end, pages=pages)

    def _pages_of(self, pool: LinkedPool, first_token: int) -> NDArray[np.int64]:
        if pool.coverage.is_exact:
            return np.array([self._lease.state_page], np.int64)
        first, last = pool.page_range(first_token, self._end)
        ids = self._lease.pages(pool.owner, first)[: last - first]
        return np.where(ids < 0, ids[-1], ids)  # holes lie before `begin`: a page of the lease's own, which is not written

    def publish(self, lacking: Sequence[str]) -> int:
        """The pages are filled, but for some components: give them to the tree. Returns by how many tokens the prefix grew."""
        lease = self._lease
        states = {} if lease.state_page is None else {self._end: lease.state_page}
        self._cache.commit(lease, self._end, states, without=lacking, resumable=True)
        return self._end - self.begin

    def release(self) -> None:
        """Free what is held; nobody writes to it any more."""
        self._cache.release(self._lease)
