"""What had become of a prefetch was kept, with its tokens and digests, until its request acquired or cancelled: for ever."""

from __future__ import annotations

import tracemalloc

import pytest
from kinds import FULL
from stored_cache import StoredCache, policy

from unified_tree import ConfigurationError
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy


@pytest.mark.parametrize("most", [1, 2, 7])
def test_the_oldest_outcomes_go_first(most: int) -> None:
    cache = StoredCache([FULL], prefetch=policy(max_outcomes=most))
    cache.compute(list(range(21)))
    twin = cache.like_this()
    for request in range(10):
        twin.prefetch([*range(11), request], request=request)
        twin.cache.drain()
        assert twin.cache.storage is not None
        assert twin.cache.storage.stats().prefetches_ended == min(most, request + 1)
        twin.forget()
    assert [twin.cache.prefetched_tokens(request) for request in range(10)] == [0] * (10 - most) + [10] * most
    assert all(twin.cache.prefetched(request) for request in range(10))
    assert twin.drops() == {"prefetch forgotten": 10 - most}
    assert twin.hit([*range(11), 9], request=9) == 0
    assert twin.cache.prefetched_tokens(9) == 0
    twin.cache.cancel(8)
    assert twin.cache.storage is not None
    assert twin.cache.storage.stats().prefetches_ended == max(0, most - 2)
    cache.end()
    twin.end()


def test_an_outcome_takes_no_room_to_speak_of() -> None:
    cache = StoredCache([FULL], page_size=16, prefetch=policy(min_tokens=1))
    prompts = 40

    def arrive(user: int) -> None:
        cache.prefetch([*range(8_000), user], namespace=f"user {user}", request=user)
        cache.cache.drain()

    arrive(-1)
    tracemalloc.start()
    for user in range(prompts):
        arrive(user)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.cache.storage is not None
    assert cache.cache.storage.stats().prefetches_ended == prompts + 1
    assert kept < prompts * 4_000, "their tokens alone are 64,000 bytes each"
    cache.end()


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_are_under_way_at_most(most: int) -> None:
    cache = StoredCache([FULL], prefetch=policy(max_open=most))
    begun = [cache.prefetch([*range(21), user], f"user {user}", user) for user in range(5)]
    assert begun == [user < most for user in range(5)]
    assert cache.drops() == {"prefetch queue full": 5 - most}
    cache.cache.drain()
    assert cache.prefetch([*range(21), 9], "user 9", 9)
    cache.cache.cancel(9)
    cache.end()


def test_one_nobody_asks_for_runs_out_of_time_all_the_same() -> None:
    cache = StoredCache([FULL], prefetch=policy(mode=PrefetchMode.TIMEOUT, base_s=1.0))
    cache.prefetch(list(range(21)))
    cache.clock.advance(2 * 10**9)
    cache.cache.poll()
    assert cache.drops() == {"prefetch out of time": 1}
    cache.end()


@pytest.mark.parametrize("name", ["room_pages", "max_open", "max_outcomes", "batch_pages", "min_tokens"])
def test_bounds_begin_at_one(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is one or more, not 0"):
        PrefetchPolicy(**{name: 0})  # type: ignore[arg-type]
    assert getattr(PrefetchPolicy(**{name: 1}), name) == 1  # type: ignore[arg-type]
