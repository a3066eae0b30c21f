"""A request that was preempted before its first run had pages published that nothing was written to: the running state's, where
an optional state was missing, and those of a window that was still to be rebuilt. The next request resumed from them.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, swa

from unified_tree import Component, Key, LeaseError, Point
from unified_tree.controllers import Lease, PrefixCache

OPTIONAL = Component(name="mamba", coverage=Point(), required=False)
PROMPT = np.arange(21)


def hit_without_a_state(prompt: np.ndarray = PROMPT) -> tuple[PrefixCache, Lease]:
    """A hit of 8 tokens that lacks the optional state."""
    cache = PrefixCache([FULL, OPTIONAL], 2)
    with cache.acquire(Key(PROMPT[:9])) as lease:
        cache.allocate(lease, 8)
        cache.commit(lease, 8)
    lease = cache.acquire(Key(prompt))
    assert (lease.cached_tokens, lease.state_copies) == (8, ())
    return cache, lease


def test_a_state_that_was_missing_is_not_published() -> None:
    cache, lease = hit_without_a_state()
    assert cache.preempt(lease, 8) == 8
    assert cache.acquire(Key(PROMPT)).state_copies == ()


def test_nor_is_one_that_was_computed_without_a_state_to_begin_from() -> None:
    cache, lease = hit_without_a_state()
    cache.allocate(lease, 20)
    cache.advance(lease, 12)
    assert (lease.state_tokens, dict(lease.save_pages)) == (None, {})
    assert lease.state_page is not None
    with pytest.raises(LeaseError, match="had no state to begin from"):
        cache.commit(lease, 12, {12: lease.state_page})
    assert lease.committed == 8
    cache.preempt(lease, 12)
    again = cache.acquire(Key(PROMPT))
    assert (again.cached_tokens, again.state_copies) == (12, ())


def rebuilding() -> tuple[PrefixCache, Lease]:
    """A hit of 20 tokens whose window has to be computed again, from token 14 on."""
    cache = PrefixCache([FULL, swa(4, rebuild_tokens=4)], 2)
    with cache.acquire(Key(PROMPT)) as lease:
        cache.allocate(lease, 20)
        cache.commit(lease, 20)
    cache.evict({"swa": 10})
    lease = cache.acquire(Key(PROMPT))
    assert (lease.cached_tokens, lease.compute_from) == (20, 14)
    return cache, lease


@pytest.mark.parametrize("allocates", [False, True])
@pytest.mark.parametrize("length", [0, 14, 18, 20])
def test_a_window_that_was_not_rebuilt_is_not_published(allocates: bool, length: int) -> None:
    cache, lease = rebuilding()
    if allocates:
        cache.allocate(lease, 21)
    assert cache.preempt(lease, length) == 20
    assert cache.acquire(Key(PROMPT)).compute_from == 14
    assert cache.tree.check() == []


def test_a_window_without_pages_is_not_committed_either() -> None:
    cache, lease = rebuilding()
    cache.commit(lease, 20, resumable=True)
    assert lease.saved == set()
    cache.allocate(lease, 21)
    cache.commit(lease, 21)
    cache.release(lease)
    assert cache.acquire(Key(PROMPT)).compute_from == 20, "it was rebuilt then"


def test_a_rebuilt_window_is_published() -> None:
    cache, lease = rebuilding()
    cache.allocate(lease, 20)
    cache.advance(lease, 20)
    assert cache.preempt(lease, 20) == 20
    assert cache.acquire(Key(PROMPT)).compute_from == 20
