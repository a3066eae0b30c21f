"""A state committed late, below a window published since, moved the window's lock back, and the window could be evicted.

Found by comparing what a request reads with what was put in (`everything 0`, step 184).
"""

from __future__ import annotations

import numpy as np
from kinds import FULL, MAMBA, swa

from unified_tree import Key
from unified_tree.controllers import PrefixCache


def test_the_window_stays_pinned() -> None:
    cache = PrefixCache([FULL, swa(5), MAMBA], 2, {"full": 32, "swa": 32, "mamba": 8})
    tokens = np.arange(12)
    lease = cache.acquire(Key(tokens), checkpoints=[6])
    cache.allocate(lease, 12)
    cache.commit(lease, tokens, resumable=True)
    held = lease.pages("swa").tolist()
    cache.commit(lease, tokens, {6: lease.save_pages[6]}, resumable=False)
    assert cache.stats().pools["swa"].protected >= 3
    cache.device.free_all(cache.tree.evict({"swa": 32}).freed)
    assert all(cache.tree.pool("swa").ledger.owns(page) for page in held[-3:])
    assert lease.pages("swa").tolist()[-3:] == held[-3:]
    cache.release(lease)
    assert cache.tree.check() == []
