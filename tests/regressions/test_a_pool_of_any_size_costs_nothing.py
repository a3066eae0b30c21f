"""A pool of 2**40 pages raised MemoryError, and one absurd `allocate` on a pool without a limit left it unusable."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Key, OutOfPagesError, PageError, UnifiedTree
from unified_tree.controllers import PrefixCache

KINDS = [FULL, swa(3), MAMBA]


@pytest.mark.parametrize("page_count", [1 << 30, 1 << 40, 1 << 62])
def test_a_cache_of_that_size(page_count: int) -> None:
    tracemalloc.start()
    cache = PrefixCache(KINDS, 2, dict.fromkeys(["full", "swa", "mamba"], page_count))
    with cache.acquire(Key(np.arange(9))) as lease:
        cache.allocate(lease, 9)
        cache.commit(lease, np.arange(9), dict(lease.save_pages))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cache.acquire(Key(np.arange(10))).cached_tokens == 8
    assert peak < 1 << 20


@pytest.mark.parametrize("page_counts", [{}, {"swa": 40}, dict.fromkeys(["full", "swa", "mamba"], 1 << 40)], ids=str)
@pytest.mark.parametrize("tokens", [1 << 40, 1 << 62, (1 << 63) - 1])
def test_an_absurd_length_changes_nothing(page_counts: dict[str, int], tokens: int) -> None:
    cache = PrefixCache(KINDS, 2, page_counts)
    lease = cache.acquire(Key(np.arange(9)))
    cache.allocate(lease, 4)
    before = cache.stats().pools, lease.pages("full").tolist(), lease.length
    with pytest.raises(OutOfPagesError):
        cache.allocate(lease, tokens)
    assert (cache.stats().pools, lease.pages("full").tolist(), lease.length) == before
    cache.allocate(lease, 9)
    cache.commit(lease, np.arange(9), dict(lease.save_pages))
    cache.release(lease)
    assert all(pool.leased == 0 for pool in cache.stats().pools.values())


@pytest.mark.parametrize("page", [1 << 32, 1 << 39, (1 << 40) - 1])
def test_ids_that_cannot_be_kept_track_of(page: int) -> None:
    tree = UnifiedTree([FULL], 2, page_counts={"full": 1 << 40})
    tree.insert(Key([1, 2]), {"full": np.array([7])})
    for ids in ([page], [3, page], list(range(page - 20, page + 1))):
        with pytest.raises(PageError):
            tree.insert(Key(np.arange(2 * len(ids))), {"full": np.array(ids)})
    assert tree.check() == []
    assert tree.insert(Key([1, 2, 3, 4]), {"full": np.array([100_000])}).boundary.length == 4
