"""Two requests computed the same tokens, and one of them got pages from host in which a carry-over was missing.

Found by the simulation: a load brings of the carry-over only what its boundary needs. The window page before that came
without it, and the other request's commit swapped its own, whole page for the tree's.
"""

from __future__ import annotations

import numpy as np
from kinds import CARRY_OVER, FULL, swa

from unified_tree import Key
from unified_tree.controllers import HostTier, LoadCost, PrefixCache
from unified_tree.controllers.transfer_engines import NullEngine

TOKENS = np.arange(100, 110)


def test_a_lease_keeps_window_pages_that_hold_more() -> None:
    host = HostTier(page_counts={"full": 100, "swa": 100, "carry": 100}, engine=NullEngine(), load_cost=LoadCost(min_tokens=1))
    cache = PrefixCache([FULL, swa(5), CARRY_OVER], 2, {"full": 50, "swa": 50}, host=host)
    with cache.acquire(Key(TOKENS)) as first:
        cache.allocate(first, 10)
        cache.commit(first, TOKENS[:6], resumable=False)  # a node ends here
        cache.commit(first, TOKENS)
    cache.drain()
    cache.tree.evict({"full": 50, "swa": 50})
    slow = cache.acquire(Key(TOKENS[:7]))
    cache.allocate(slow, 7)
    loading = cache.acquire(Key(np.append(TOKENS, 1)))
    cache.drain()
    assert (slow.cached_tokens, loading.cached_tokens, loading.is_loading) == (0, 10, False)
    own = slow.pages("swa").tolist()
    cache.commit(slow, TOKENS[:6], resumable=True)
    assert slow.pages("swa").tolist() == own
    cache.release(slow)
    cache.release(loading)
    assert cache.tree.check() == []
    cache.close()
