"""A window in the pages of a longer one: backed up, not loaded back, for that is not known to be exact."""

from __future__ import annotations

import numpy as np
from kinds import CARRY_OVER, FULL, swa

from unified_tree import Key
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine


def test_nothing_is_loaded_back_where_older_pages_would_come_without_their_sharer() -> None:
    counts = {"full": 100, "swa": 100, "carry": 100}
    cache = PrefixCache(
        [FULL, swa(5), CARRY_OVER], 2, {"full": 6, "swa": 6}, host=HostTier(page_counts=counts, engine=NullEngine())
    )
    for first in (0, 100):
        tokens = np.arange(first, first + 10)
        with cache.acquire(Key(tokens)) as lease:
            cache.allocate(lease, 10)
            cache.commit(lease, tokens)
        cache.drain()
    lease = cache.acquire(Key(np.arange(11)))
    assert (lease.cached_tokens, lease.loading) == (0, False)
    assert cache.tree.match_prefix(Key(np.arange(11))).reachable.length == 10
    assert cache.stats().drops["load not known to be exact"] == 1
