"""What a link is storing: the boundaries of a lease that fit, and the transfers under way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unified_tree.controllers.prefix_linker.prefix_linker import PrefixLinker, Progress, Span, tokens_of
from unified_tree.lookup.matching import spare_from

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.controllers.prefix_linker.prefix_linker import LinkCounters
    from unified_tree.nodes.node import Receipt
    from unified_tree.terms.results import Boundary


class LinkedStores:
    """Stores of one link. Each locks its pages until it has ended; its length is the number under way.

    Args:
        cache: has the pages.
        linker: stores them.
        pools: the linker's.
        limit: stores under way at once.
        names: new ones.
        counters: of the link.
    """

    def __init__(
        self,
        cache: PrefixCache,
        linker: PrefixLinker,
        pools: Sequence[LinkedPool],
        limit: int,
        names: Iterator[str],
        counters: LinkCounters,
    ) -> None:
        self._cache = cache
        self._linker = linker
        self._pools = pools
        self._owners = sorted({pool.owner for pool in pools})
        self._limit = limit
        self._names = names
        self._counters = counters
        self._open: dict[str, tuple[Receipt, int]] = {}

    def __len__(self) -> int:
        """Stores under way."""
        return len(self._open)

    def begin(self, lease: Lease, stored: int, salt: str) -> int:
        """Store what a lease has committed beyond the tokens stored. Returns up to where that is asked for now.

        Cost: with windows and states a match a boundary, else a look at the lease.
        """
        for boundary, end in self.storable(lease, stored):
            if len(self) >= self._limit or not self._linker.is_healthy:
                self._counters.stores_dropped += 1
                break
            self._store(lease, boundary, salt, stored, end)
            stored = end
        return stored

    def storable(self, lease: Lease, stored: int) -> list[tuple[Boundary, int]]:
        """Boundaries on what a lease has committed at which every linked component is on the device, and the whole chunks of
        each, ascending, all beyond the tokens stored. Without windows and states the last one stands for all. None at which
        windows are spare: these are in the way of what was asked for.
        """
        chunk, boundary = self._linker.chunk_tokens, lease.boundary
        if not self._cache.layout.needs_saves:
            end = self._reach(boundary, boundary.length) // chunk * chunk
            return [(boundary, end)] if end > stored else []
        found = []
        state = self._cache.tree.state
        limit = boundary.length // chunk * chunk
        while limit > stored:
            boundary = self._cache.tree.match_prefix(lease.tree_key, limit=limit, touch=False).device
            node = state.nodes.get(boundary.node)
            spare = None if node is None else spare_from(state, node, boundary.length)
            if spare is not None:
                limit = min(boundary.length - 1, spare) // chunk * chunk
                continue
            is_whole = boundary.length > stored and boundary.length % chunk == 0
            if is_whole and self._reach(boundary, limit) >= boundary.length:
                found.append((boundary, boundary.length))
            limit = (boundary.length - 1) // chunk * chunk
        return found[::-1]

    def _reach(self, boundary: Boundary, length: int) -> int:
        """Up to which token every linked component's own state is there; 0 where a window or a state is not."""
        for pool in self._pools:
            count = self._cache.tree.pages(boundary, pool.name).size
            if pool.coverage.is_path:
                length = min(length, count * self._cache.page_size)
                continue
            first, last = pool.page_range(0, boundary.length)
            if count < last - first:
                return 0
        return length

    def _store(self, lease: Lease, boundary: Boundary, salt: str, begin: int, end: int) -> None:
        tree, pages = self._cache.tree, {}
        for pool in self._pools:
            first, last = pool.page_range(begin, end)
            ids = tree.pages(boundary, pool.owner)
            pages[pool.name] = ids[first:last] if pool.coverage.is_path else ids[ids.size - (last - first) :]
        name, receipt = next(self._names), tree.lock(boundary, components=self._owners)
        self._linker.store(name, Span(tokens=tokens_of(lease.key)[:end], salt=salt, begin=begin, end=end, pages=pages))
        self._open[name] = (receipt, end - begin)

    def poll(self) -> None:
        """Release what has been stored, or has failed. Cost: O(stores under way)."""
        for name in list(self._open):
            progress = self._linker.progress(name)
            if progress is Progress.RUNNING:
                continue
            receipt, tokens = self._open.pop(name)
            receipt.release()
            if progress is Progress.DONE:
                self._counters.stored_tokens += tokens
            else:
                self._counters.stores_failed += 1
            self._linker.release(name)

    def close(self) -> None:
        """The linker was closed: release everything."""
        for receipt, _ in self._open.values():
            receipt.release()
        self._open.clear()
