"""`Lease.pages` was a view that followed the lease until its table grew, and was stale from then on: a kept table named four
pages that had been freed, while the README invited to keep it.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, swa

from unified_tree import Key, LeaseError
from unified_tree.controllers import Lease, PrefixCache

TOKENS = np.arange(24)


def kept(lease: Lease) -> list[tuple[np.ndarray, list[int]]]:
    return [(table, table.tolist()) for table in (lease.pages(name, first) for name in ("full", "swa") for first in (0, 3))]


def test_it_is_what_it_was() -> None:
    cache = PrefixCache([FULL, swa(3)], 2, {"full": 40, "swa": 40})
    with cache.acquire(Key(TOKENS[:12])) as twin:
        cache.allocate(twin, 12)
        lease = cache.acquire(Key(TOKENS))
        snapshots = []
        for length in (12, 20, 24):
            cache.allocate(lease, length)
            snapshots += kept(lease)
            cache.advance(lease, length)
            snapshots += kept(lease)
            if length == 12:
                cache.commit(twin, TOKENS[:12])
            cache.commit(lease, TOKENS[:length])
            snapshots += kept(lease)
        cache.truncate(lease, 24)
        cache.release(lease)
    assert cache.stats().duplicate_pages > 0, "pages were swapped for the tree's"
    for table, ids in snapshots:
        assert not table.flags.writeable
        assert table.tolist() == ids


def test_the_part_that_is_new_can_be_had_alone() -> None:
    cache = PrefixCache([FULL], 2, {"full": 40})
    lease = cache.acquire(Key(TOKENS))
    cache.allocate(lease, 8)
    table = lease.pages("full")
    cache.allocate(lease, 12)
    assert lease.pages("full", table.size).size == 2
    assert [*table, *lease.pages("full", table.size)] == lease.pages("full").tolist()
    assert lease.pages("full", 6).size == lease.pages("full", 1 << 40).size == 0
    for wrong in (-1, 1.0, True, None, float("nan")):
        with pytest.raises(LeaseError, match="first_page"):
            lease.pages("full", wrong)
    for unknown in ("swa", None, ["full"], 3):
        with pytest.raises(LeaseError, match="no page table"):
            lease.pages(unknown)


def test_a_released_lease_has_no_pages() -> None:
    cache = PrefixCache([FULL], 2, {"full": 40})
    lease = cache.acquire(Key(TOKENS))
    cache.allocate(lease, 8)
    cache.release(lease)
    with pytest.raises(LeaseError, match="released"):
        lease.pages("full")
