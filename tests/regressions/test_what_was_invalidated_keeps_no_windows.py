"""A lease whose namespace was invalidated kept every window page from its next save point on, for what it would never publish.

A small pool was soon full of them, and the lease could not go on though it ran alone. Found by a random mix of requests over a
store, once in some thousand runs: weights changed between two chunks of a prompt with checkpoints.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, swa

from unified_tree import Key
from unified_tree.controllers import PrefixCache

TOKENS = np.arange(64)


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_windows_are_freed_on_the_way(commits: bool, in_batch: bool) -> None:
    cache = PrefixCache([FULL, swa(5)], 2, {"full": 64, "swa": 8})
    lease = cache.acquire(Key(TOKENS), checkpoints=[12, 40])
    assert lease.next_stop(0) == 12
    cache.allocate(lease, 8)
    cache.commit(lease, TOKENS[:8], resumable=False)
    batch = cache.batch(max_leases=2, max_tokens=64) if in_batch else None
    if batch is not None:
        batch.add(lease)
    cache.invalidate()
    assert lease.save_at == ()
    assert lease.next_stop(8) is None
    for length in range(12, 65, 4):
        if batch is None:
            cache.allocate(lease, length)
        else:
            batch.allocate(length - lease.length)
        if commits:
            cache.commit(lease, TOKENS[:length])
        else:
            cache.advance(lease, length)
        assert (lease.pages("swa") >= 0).sum() <= 4
    cache.release(lease)
    assert cache.acquire(Key(TOKENS)).cached_tokens == 0
    assert cache.tree.check() == []
