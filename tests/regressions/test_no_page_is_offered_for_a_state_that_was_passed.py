"""When a pool had been short at a length where a state was due, a page for it was offered after the run had passed that length.
An engine that gives what it is offered published a page that nothing was written to.
"""

from __future__ import annotations

import numpy as np
from kinds import FULL, MAMBA

from unified_tree import Key
from unified_tree.controllers import PrefixCache

PROMPT = np.arange(20)


def test_a_page_comes_in_time_or_not_at_all() -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 64, "mamba": 2})
    other = cache.acquire(Key(PROMPT + 100))
    lease = cache.acquire(Key(PROMPT), checkpoints=[8, 14])
    cache.allocate(lease, 10)
    assert lease.save_pages == {}, "both pages are running states"
    cache.advance(lease, 8)
    cache.release(other)
    cache.allocate(lease, 10)
    assert set(lease.save_pages) == {8}, "the running state is there"
    cache.advance(lease, 10)
    cache.commit(lease, 10)
    cache.release(lease)


def test_a_page_that_is_free_too_late() -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 64, "mamba": 2})
    other = cache.acquire(Key(PROMPT + 100))
    lease = cache.acquire(Key(PROMPT), checkpoints=[8, 14])
    cache.allocate(lease, 10)
    cache.advance(lease, 9)
    cache.release(other)
    cache.allocate(lease, 10)
    assert lease.save_pages == {}
    cache.allocate(lease, 14)
    assert set(lease.save_pages) == {14}
