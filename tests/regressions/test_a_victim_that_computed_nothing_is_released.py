"""A request that had computed nothing could not be preempted where states are kept, and one that had hit something could not
ask for less than that: the call raised LeaseError, and the victim kept the pages that another request waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kinds import SETS

from unified_tree import Key, LeaseError, OutOfPagesError
from unified_tree.controllers import PrefixCache

PROMPT = np.arange(20)
NOTHING: list[Any] = [0, [], (), np.array([], np.int64), np.int64(0)]


@pytest.mark.parametrize("kinds", SETS)
@pytest.mark.parametrize("nothing", NOTHING, ids=repr)
def test_nothing_is_published_of_nothing(kinds: str, nothing: Sequence[int] | int) -> None:
    cache = PrefixCache(SETS[kinds], 2)
    for reserved in (0, 12):
        lease = cache.acquire(Key(PROMPT), reserve_tokens=reserved)
        assert cache.preempt(lease, nothing) == 0
        assert lease.is_released
    assert cache.tree.node_count == 0
    assert not any(pool.leased for pool in cache.stats().pools.values())


@pytest.mark.parametrize("kinds", SETS)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 12])
def test_less_than_was_hit_leaves_the_hit(kinds: str, length: int) -> None:
    cache = PrefixCache(SETS[kinds], 2)
    lease = cache.acquire(Key(PROMPT))
    cache.allocate(lease, 12)
    assert cache.preempt(lease, 12) == 12
    lease = cache.acquire(Key(PROMPT))
    hit = lease.compute_from
    assert hit == 12
    nodes = cache.tree.node_count
    assert cache.preempt(lease, PROMPT[:length]) == 12
    assert cache.tree.node_count == nodes
    assert cache.acquire(Key(PROMPT)).compute_from == hit


def test_the_victim_of_a_full_pool() -> None:
    cache = PrefixCache(SETS["mamba"], 2, {"full": 8, "mamba": 4})
    first, victim = cache.acquire(Key(PROMPT)), cache.acquire(Key(PROMPT + 50))
    cache.allocate(first, 10)
    cache.allocate(victim, 6)
    with pytest.raises(OutOfPagesError):
        cache.allocate(first, 12)
    cache.preempt(victim, [])
    cache.allocate(first, 12)


def test_other_mistakes_are_refused_as_ever() -> None:
    cache = PrefixCache(SETS["mamba"], 2)
    with cache.acquire(Key(PROMPT), reserve_tokens=8) as lease:
        cache.commit(lease, 8)
        page = lease.state_page
        assert page is not None
        mistakes: list[tuple[Any, dict[int, int]]] = [(9, {}), (-1, {}), (PROMPT[:4] + 1, {}), (0, {2: page}), (0, {0: page})]
        for tokens, states in mistakes:
            with pytest.raises(LeaseError):
                cache.preempt(lease, tokens, states)
        assert not lease.is_released
