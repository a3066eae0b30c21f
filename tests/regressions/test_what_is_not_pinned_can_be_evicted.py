"""Device pages that nobody had pinned could not be evicted for what lived on host alone below them, and were counted as
evictable all the same: a call was refused after it had evicted in vain, and a pool could fill up with them for good.

Found by the simulation, which takes every pool whole once all leases are gone.
"""

from __future__ import annotations

import numpy as np
from grove import Grove
from kinds import FULL

from unified_tree import Key, Tier
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine


def test_a_backup_keeps_what_its_copies_will_stand_on() -> None:
    grove = Grove([FULL])
    grove.put("ab")
    grove.backup("ab")
    grove.put("abcd")
    effect = grove.tree.transfers.backup(grove.match("abcd").device, {"full": np.array([900])})
    assert grove.evict(9, tier=Tier.HOST) == {}
    assert grove.tree.transfers.acknowledge(effect) == {}
    assert grove.evict(9, tier=Tier.HOST) == {"full": [900, 101]}


def serve(cache: PrefixCache, *tokens: int) -> None:
    with cache.acquire(Key([*tokens, 9])) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, tokens)
    cache.drain()


def test_without_leases_a_pool_can_be_had_whole() -> None:
    cache = PrefixCache([FULL], 1, {"full": 4}, host=HostTier(page_counts={"full": 2}, engine=NullEngine()))
    serve(cache, 1)
    serve(cache, 1, 2)
    cache.device.reserve({"full": 3})
    cache.release(cache.acquire(Key([1, 2, 9])))
    cache.drain()
    assert cache.tree.pool("full", Tier.HOST).used_pages == 2, "the lower page lives on host alone, and is the warmer copy"
    serve(cache, 3)
    cache.device.reserve({"full": 4})
    assert cache.tree.pool("full").used_pages == 0
    assert cache.tree.check() == []
