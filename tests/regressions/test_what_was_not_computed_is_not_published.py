"""`without` names components that were not computed. It was obeyed for those that share pages, and silently ignored for those
with pages of their own: an own draft's pages were published as they were, also those that a prefix linker had not filled.
"""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FULL, MAMBA, OWN_DRAFT, swa

from unified_tree import Component, Key, LeaseError, Point
from unified_tree.controllers import PrefixCache

PROMPT = np.arange(21)
OPTIONAL_STATE = Component(name="mamba", coverage=Point(), required=False)


@pytest.mark.parametrize("fills", [False, True])
def test_a_draft_with_pages_of_its_own(fills: bool) -> None:
    cache = PrefixCache([FULL, OWN_DRAFT], 2)
    lease = cache.acquire_to_fill(Key(PROMPT), 20) if fills else cache.acquire(Key(PROMPT), reserve_tokens=20)
    cache.commit(lease, 8, without=["draft"])
    cache.commit(lease, 20)
    cache.release(lease)
    with cache.acquire(Key(PROMPT)) as again:
        assert again.cached_tokens == 20
        assert again.pages("draft").tolist() == [-1] * 10, "a path ends where it has a hole"
    assert not any(pool.leased for pool in cache.stats().pools.values())
    assert cache.tree.check() == []


def test_a_window_that_is_optional() -> None:
    cache = PrefixCache([FULL, swa(3), swa(8, required=False, name="draft")], 2)
    lease = cache.acquire(Key(PROMPT), reserve_tokens=20)
    cache.commit(lease, 14, without=["draft"], resumable=True)
    assert (lease.pages("draft")[:7] < 0).all()
    cache.commit(lease, 18, resumable=True)
    cache.release(lease)
    assert cache.tree.check() == []
    assert not any(pool.leased for pool in cache.stats().pools.values())
    with cache.acquire(Key(PROMPT[:15])) as again:
        assert (again.cached_tokens, bool((again.pages("draft") < 0).all())) == (14, True)
    with cache.acquire(Key(PROMPT)) as again:
        assert again.cached_tokens == 18
        assert (again.pages("draft") >= 0).tolist() == [False] * 7 + [True] * 2, "what was computed since"


@pytest.mark.parametrize("preempts", [False, True])
def test_a_state(preempts: bool) -> None:
    cache = PrefixCache([FULL, OPTIONAL_STATE], 2)
    lease = cache.acquire(Key(PROMPT), reserve_tokens=20)
    page = lease.state_page
    assert page is not None
    with pytest.raises(LeaseError, match="`without` says"):
        cache.commit(lease, 20, {20: page}, without=["mamba"])
    if preempts:
        cache.preempt(lease, 20, without=["mamba"])
    else:
        cache.commit(lease, 20, without=["mamba"])
        cache.release(lease)
    assert cache.acquire(Key(PROMPT)).state_copies == ()


def test_a_preemption() -> None:
    cache = PrefixCache([FULL, OWN_DRAFT, MAMBA], 2)
    lease = cache.acquire(Key(PROMPT), reserve_tokens=20)
    cache.preempt(lease, 20, without=["draft"])
    with cache.acquire(Key(PROMPT)) as again:
        assert (again.cached_tokens, bool((again.pages("draft") < 0).all())) == (20, True)
