"""A load that had arrived and whose gates had all opened was declared stale: its boundary lay inside a node, was cut off when
it was pinned, and went on naming the lower half, which nothing pinned and the host evicted.
"""

from __future__ import annotations

import numpy as np
from kinds import FULL

from unified_tree import Key
from unified_tree.controllers import HostTier, LoadCost, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine


def publish(cache: PrefixCache, tokens: list[int]) -> None:
    with cache.acquire(Key(tokens), may_load=False) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, np.array(tokens))


def test_it_is_committed() -> None:
    host = HostTier(page_counts={"full": 8}, engine=NullEngine(), load_cost=LoadCost(min_tokens=1))
    cache = PrefixCache([FULL], 1, {"full": 20}, host=host)
    publish(cache, [1, 2, 3, 4, 5, 6])
    cache.drain()
    cache.device.free_evicted(cache.tree.evict({"full": 20}))
    lease = cache.acquire(Key([1, 2, 3, 9]))
    assert (lease.cached_tokens, lease.is_loading) == (3, True)
    cache.wait_layer(lease, 0)
    for other in ([11, 12], [21, 22, 23]):
        publish(cache, other)
    cache.poll()
    cache.allocate(lease, 4)
    cache.commit(lease, [1, 2, 3, 9])
    assert lease.committed == 4
    cache.release(lease)
    cache.drain()
    assert cache.tree.check() == []
    cache.close()
