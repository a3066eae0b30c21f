"""Up to where a lease's prefix can be stored: boundaries at whole chunks at which every linked component is on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.cache.lease import Lease
    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.receipt import Boundary


def storable(
    cache: PrefixCache, pools: Sequence[LinkedPool], lease: Lease, stored: int, chunk_tokens: int
) -> list[tuple[Boundary, int]]:
    """Boundaries on what a lease has committed and the whole chunks of each, ascending, all beyond the tokens stored.

    Without windows and states the last one stands for all. Cost: with these a match a boundary, else a look at the lease.
    """
    boundary, found = lease.boundary, []
    if not cache.layout.saves:
        end = _reach(cache, pools, boundary, boundary.length) // chunk_tokens * chunk_tokens
        return [(boundary, end)] if end > stored else []
    limit = boundary.length // chunk_tokens * chunk_tokens
    while limit > stored:
        boundary = cache.tree.match_prefix(lease.key, limit=limit, touch=False).device
        is_whole = boundary.length > stored and boundary.length % chunk_tokens == 0
        if is_whole and _reach(cache, pools, boundary, limit) >= boundary.length:
            found.append((boundary, boundary.length))
        limit = (boundary.length - 1) // chunk_tokens * chunk_tokens
    return found[::-1]


def _reach(cache: PrefixCache, pools: Sequence[LinkedPool], boundary: Boundary, length: int) -> int:
    """Up to which token every linked component's own state is there; 0 where a window or a state is not."""
    for pool in pools:
        count = cache.tree.pages(boundary, pool.name).size
        if pool.coverage.is_path:
            length = min(length, count * cache.page_size)
            continue
        first, last = pool.page_range(0, boundary.length)
        if count < last - first:
            return 0
    return length
