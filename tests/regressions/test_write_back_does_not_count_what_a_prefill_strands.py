"""A prefill that had saved no window yet strands its own pages. Write-back took these for pages that can be evicted at once.

So nothing was copied, and the coldest boundary was evicted without a copy while the host was empty.
"""

from __future__ import annotations

import numpy as np

from unified_tree import Component, Key, Path, Trailing
from unified_tree.controllers import HostTier, PrefixCache, WritePolicy
from unified_tree.controllers.transfer_engines import NullEngine

PAGE_SIZE = 4


def test_the_coldest_boundary_is_copied_while_a_long_prompt_is_computed() -> None:
    parts = [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(8))]
    host = HostTier(
        page_counts={"full": 64, "swa": 64}, engine=NullEngine(), write_policy=WritePolicy.WRITE_BACK, max_backup_share=1.0
    )
    cache = PrefixCache(parts, PAGE_SIZE, {"full": 40, "swa": 16}, host=host)
    cold = np.arange(41)
    with cache.acquire(Key(cold)) as lease:
        cache.allocate(lease, cold.size)
        cache.commit(lease, cold.size)
    long = np.arange(1000, 1145)
    with cache.acquire(Key(long)) as lease:
        for end in range(8, long.size, 8):
            cache.poll()
            cache.allocate(lease, end)
            cache.commit(lease, end)
    cache.drain()
    assert cache.tree.match_prefix(Key(cold)).reachable.length == 40
    assert not cache.tree.check()
