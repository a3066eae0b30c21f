"""Prefetches: side by side, out of time, forgotten, and of bounded number."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from kinds import FULL, SETS
from stored_cache import STEP_NS, Kept, StoredCache, policy
from waiting import PATIENCE_S

from unified_tree import ConfigurationError
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy, StorageTier

# One thread read for all prefetches: sixteen look-ups in a slow store stood in line until all had timed out but the first.

ARRIVALS = 16
PROMPTS = [[*range(21), user] for user in range(ARRIVALS)]


class Meeting(Kept):
    """A store whose look-ups end when as many are under way as there are arrivals, if that ever happens."""

    def __init__(self, pools: Sequence[Any]) -> None:
        super().__init__(pools)
        self.met = threading.Barrier(ARRIVALS)

    def exists(self, pool: str, keys: Sequence[bytes]) -> Any:
        self.met.wait(PATIENCE_S)
        return super().exists(pool, keys)


def test_sixteen_arrivals_are_looked_up_side_by_side() -> None:
    cache = StoredCache([FULL], store=Meeting, threads=True, attach=False)
    made = cache.make_tier()
    tier = StorageTier(
        engine=made.engine, pools=made.pools, memory=made.memory, weights_version="weights 0", prefetch=made.prefetch
    )
    for jobs in (made.reading, made.writing):
        jobs.close()
    cache.cache.attach_storage(tier)
    for user, prompt in enumerate(PROMPTS):
        assert cache.prefetch(prompt, namespace=f"user {user}", request=user)
    cache.cache.drain()
    assert cache.drops() == {}, "a barrier that breaks is an error of the look-up"
    cache.end()


def test_those_that_gave_up_leave_the_line() -> None:
    """With a single reader, what waits behind them is looked up as soon as the call under way has returned."""
    cache = StoredCache([FULL], prefetch=policy(mode=PrefetchMode.TIMEOUT, base_s=1.0))
    for user, prompt in enumerate(PROMPTS):
        cache.prefetch(prompt, namespace=f"user {user}", request=user)
    cache.clock.advance(2 * 10**9)
    assert all(cache.cache.prefetched(user) for user in range(ARRIVALS))
    cache.cache.drain()
    assert cache.store.calls == []
    assert cache.drops() == {"prefetch out of time": ARRIVALS}
    cache.end()


def test_one_goes_on_for_who_still_waits_for_the_same() -> None:
    cache = StoredCache([FULL])
    cache.compute(PROMPTS[0])
    twin = cache.like_this()
    twin.prefetch(PROMPTS[0], request="first")
    twin.prefetch(PROMPTS[0], request="second")
    twin.hit(PROMPTS[0], request="first")
    twin.cache.drain()
    assert twin.hit(PROMPTS[0], request="second") == 20
    assert twin.figures.prefetches == 1, "the first one's look-up served both"
    cache.end()
    twin.end()


# What had become of a prefetch was kept, with its tokens and digests, until its request acquired or cancelled: for ever.


@pytest.mark.parametrize("most", [1, 2, 7])
def test_the_oldest_outcomes_go_first(most: int) -> None:
    cache = StoredCache([FULL], prefetch=policy(max_outcomes=most))
    cache.compute(list(range(21)))
    twin = cache.like_this()
    for request in range(10):
        twin.prefetch([*range(11), request], request=request)
        twin.cache.drain()
        assert twin.figures.prefetches_ended == min(most, request + 1)
        twin.forget()
    assert [twin.cache.prefetched_tokens(request) for request in range(10)] == [0] * (10 - most) + [10] * most
    assert all(twin.cache.prefetched(request) for request in range(10))
    assert twin.drops() == {"prefetch forgotten": 10 - most}
    assert twin.hit([*range(11), 9], request=9) == 0
    assert twin.cache.prefetched_tokens(9) == 0
    twin.cache.cancel(8)
    assert twin.figures.prefetches_ended == max(0, most - 2)
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
    assert cache.figures.prefetches_ended == prompts + 1
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
    with pytest.raises(ConfigurationError, match=f"{name} must be 1 or more, not 0"):
        PrefetchPolicy(**{name: 0})  # type: ignore[arg-type]
    assert getattr(PrefetchPolicy(**{name: 1}), name) == 1  # type: ignore[arg-type]


# A prefetch that had given up took host pages for all that was found, and read none of it: a slow store emptied the host.
# Pages are taken for what is about to be read, so one that gives up halfway has evicted little more than it brings.

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
