"""A commit took window pages that the next token needs out of the lease's table, where the tree had them from an earlier one.

Found by comparing what a request reads with what was put in (`narrow window 300`, step 89).
"""

from __future__ import annotations

import numpy as np
from kinds import FULL, swa

from unified_tree import Key
from unified_tree.controllers import PrefixCache


def test_pages_published_earlier_stay_in_the_table() -> None:
    cache = PrefixCache([FULL, swa(3)], 2, {"full": 32, "swa": 32})
    tokens = np.arange(30)
    lease = cache.acquire(Key(tokens[:16]))
    for length in (16, 18):
        cache.allocate(lease, length)
        cache.commit(lease, tokens[:length], resumable=True)
        held = lease.pages("swa")[(length - 3) // 2 :]
        assert (held >= 0).all(), "the next token needs the three before it"
        assert all(cache.tree.pool("swa").ledger.owns(page) for page in held.tolist())
    assert cache.stats().pools["swa"].protected == 4, "whole values: [10, 16) of the prompt and its repeat, [16, 18) behind"
    cache.release(lease)
    assert cache.tree.check() == []
