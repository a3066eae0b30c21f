"""A page that held the state of one length was accepted at another: a later hit there would have resumed from a wrong state."""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, MAMBA

from unified_tree import Key, LeaseError
from unified_tree.controllers import PrefixCache


def test_a_page_saved_for_one_length_is_refused_at_another() -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 8, "mamba": 4})
    with cache.acquire(Key(np.arange(8)), checkpoints=(4,)) as lease:
        cache.allocate(lease, 8)
        before = cache.tree.dump()
        with pytest.raises(LeaseError, match="saves the state at 6"):
            cache.commit(lease, 8, {6: lease.save_pages[4]})
        assert cache.tree.dump() == before
        cache.commit(lease, 8, dict(lease.save_pages))
    assert cache.acquire(Key(np.arange(9))).cached_tokens == 4
    assert cache.tree.check() == []
