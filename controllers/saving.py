"""Pages for the states that a lease will save as its run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.lease import Lease
    from unified_tree.controllers.prefix_cache import PrefixCache


def allocate_saves(cache: PrefixCache, lease: Lease) -> None:
    """Pages for the states to be saved up to the lease's length. A pool that is short saves fewer."""
    assert cache.point is not None
    for length in lease.save_at:
        due = lease.committed < length <= lease.length and length not in lease.saved
        if due and length not in lease.save_pages and cache.device.try_reserve(cache.point):
            lease.save_pages[length] = int(cache.device.allocate(cache.point, 1)[0])
    if not lease.save_output:
        return
    latest = lease.length // cache.save_grid_tokens * cache.save_grid_tokens
    if latest <= max(lease.prompt_tokens, lease.committed) or latest in lease.save_pages:
        return
    older = [length for length in lease.save_pages if length > lease.prompt_tokens]
    if older:  # one page follows the output: the next state overwrites the one before
        lease.save_pages[latest] = lease.save_pages.pop(older[0])
    elif cache.device.try_reserve(cache.point):
        lease.save_pages[latest] = int(cache.device.allocate(cache.point, 1)[0])
