"""Write-through copied only what ends where a commit ends, so a state saved on a coarser grid than pages never got to host."""

from __future__ import annotations

import numpy as np

from unified_tree import Component, Key, Path, Point
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

KINDS = [Component(name="full", coverage=Path()), Component(name="mamba", coverage=Point(), save_grid_tokens=4)]


def test_it_is_on_host_after_the_commit() -> None:
    cache = PrefixCache(KINDS, 2, {"full": 32, "mamba": 4}, host=HostTier(page_counts={}, engine=NullEngine()))
    with cache.acquire(Key(np.arange(11)), save_output=False) as lease:
        assert lease.save_at == (8,)
        cache.allocate(lease, 11)
        cache.commit(lease, np.arange(11), {8: lease.save_pages[8]})
    cache.drain()
    pools = cache.stats().host_pools
    assert (pools["full"].used, pools["mamba"].used) == (4, 1)
    cache.device.free_evicted(cache.tree.evict({"mamba": 4, "full": 32}))
    assert cache.tree.match_prefix(Key(np.arange(11))).reachable.length == 8
    cache.close()
