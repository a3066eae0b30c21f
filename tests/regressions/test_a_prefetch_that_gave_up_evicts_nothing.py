"""A prefetch that had given up took host pages for all that was found, and read none of it: a slow store emptied the host.

Pages are taken for what is about to be read, so one that gives up halfway has evicted little more than it brings.
"""

from __future__ import annotations

import pytest
from kinds import SETS
from stored_cache import STEP_NS, StoredCache, policy

from unified_tree.controllers.storage_tier import PrefetchMode

PROMPT = list(range(41))
SHORT = 2.5 * STEP_NS / 1e9
KINDS = ("full", "mamba")


def full_of_others(kinds: str, **settings: object) -> StoredCache:
    """A server whose host is full of what others may need, over a store that has the prompt."""
    first = StoredCache(SETS[kinds])
    first.compute(PROMPT, checkpoints=[20, 40])
    first.cache.close()
    cache = first.like_this(host_pages=20, prefetch=policy(max_host_share=1.0, **settings))
    for user in range(5):
        cache.compute([100 + user, *range(8)], "others")
    assert on_host(cache) == 20
    cache.store.calls.clear()
    return cache


def on_host(cache: StoredCache) -> int:
    return sum(pool.tree for name, pool in cache.cache.stats().host_pools.items() if name == "full")


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "forgotten"])
@pytest.mark.parametrize("kinds", KINDS)
def test_a_look_up_that_came_too_late(kinds: str, asked: bool) -> None:
    cache = full_of_others(kinds, mode=PrefetchMode.TIMEOUT, base_s=SHORT, per_token_s=0.0)
    cache.prefetch(PROMPT)
    cache.clock.advance(10 * STEP_NS)
    if asked:
        assert cache.cache.prefetched("request")
    cache.cache.poll()
    asked_for = cache.store.count("exists", "full")
    cache.cache.drain()
    assert on_host(cache) == 20
    assert cache.store.count("get", "full") == 0
    assert cache.store.count("exists", "full") == asked_for, "and it asks for nothing more"
    assert cache.drops()["prefetch out of time"] == 1
    cache.end()


def test_best_effort_that_is_asked_at_once() -> None:
    cache = full_of_others("full", mode=PrefetchMode.BEST_EFFORT)
    cache.prefetch(PROMPT)
    assert cache.cache.prefetched("request")
    cache.cache.drain()
    assert on_host(cache) == 20
    assert cache.store.calls == []
    cache.end()


@pytest.mark.parametrize("room", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 2])
def test_one_that_gives_up_while_it_reads(room: int, batch: int) -> None:
    seen = set()
    for steps in range(1, 40):
        cache = full_of_others("full", mode=PrefetchMode.BEST_EFFORT, room_pages=room, batch_pages=batch)
        cache.prefetch(PROMPT)
        cache.step(steps)
        cache.cache.prefetched("request")
        cache.cache.drain()
        read = cache.reach(PROMPT) // 2
        evicted = 20 - (on_host(cache) - read)
        # An evicted value frees the pages of a node; of these the prefetch takes a portion.
        assert evicted <= read + max(read, room) + 4, (steps, read, evicted)
        assert cache.store.count("get", "full") == read
        seen.add(read)
        cache.end()
    assert {0, 20} < seen


def test_what_nobody_waits_for_is_still_brought_for_who_comes_next() -> None:
    cache = full_of_others("full", mode=PrefetchMode.BEST_EFFORT, room_pages=4, batch_pages=2)
    cache.prefetch(PROMPT)
    cache.step(6)
    assert cache.hit(PROMPT, request="request") == 0, "it does not wait"
    cache.cache.drain()
    assert 0 < cache.reach(PROMPT) < 40
    cache.end()
