"""Hints: what they keep, and how each of them ends."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import session_turns
from kinds import FULL
from session_turns import STATES, turn
from stored_cache import StoredCache

from unified_tree import Key, LeaseError
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.cache.held_hints import Hint
from unified_tree.controllers.host import HostTier, WritePolicy
from unified_tree.controllers.testing import Latencies, SimulatedEngine
from unified_tree.controllers.transfer_engines import VirtualClock


class Clock:
    """A clock that only the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def cache_of(pages: int = 12, *, has_host: bool = False, **options: Any) -> PrefixCache:
    return session_turns.cache_of(STATES, {"full": pages, "mamba": 8}, has_host=has_host, **options)


def flood(cache: PrefixCache, count: int) -> None:
    for i in range(count):
        turn(cache, np.arange(1000 + 100 * i, 1017 + 100 * i))


def outcomes(cache: PrefixCache) -> dict[str, int]:
    return {f"{verb} {outcome}": count for (verb, outcome), count in cache.stats().hints.items()}


@pytest.mark.parametrize("policy", ["density", "lru", "cost", "fifo"])
def test_what_is_retained_outlives_a_flood_until_the_tool_returns(policy: str) -> None:
    cache = cache_of(policy=policy)
    turn(cache, np.arange(17), "agent")
    assert cache.hints.retain("agent")
    flood(cache, 5)
    assert turn(cache, np.arange(25), "agent") == 16
    assert outcomes(cache) == {"retain used": 1}
    assert len(cache.hints) == 0


def test_a_pool_in_need_takes_what_is_retained_and_says_so() -> None:
    cache = cache_of(pages=5)
    turn(cache, np.arange(17), "agent")
    assert cache.hints.retain("agent")
    flood(cache, 2)
    assert turn(cache, np.arange(17), "agent") == 0
    assert outcomes(cache) == {"retain taken": 1}
    details = cache.stats().miss_details
    assert any("hint" in detail for _, detail in details), details


def test_a_time_that_is_over_ends_it() -> None:
    clock = Clock()
    cache = cache_of(time_s=clock)
    turn(cache, np.arange(17), "agent")
    assert cache.hints.retain("agent", seconds=5.0)
    clock.now += 6.0
    cache.poll()
    assert outcomes(cache) == {"retain expired": 1}
    flood(cache, 5)
    assert turn(cache, np.arange(17), "agent") == 0


def test_hints_that_ended_long_before_their_time_are_forgotten() -> None:
    clock = Clock()
    cache = cache_of(time_s=clock, max_hints=8)
    turn(cache, np.arange(17), "agent")
    turn(cache, np.arange(100, 117), "other")
    assert cache.hints.retain("other", seconds=2e6)
    for _ in range(200):
        assert cache.hints.retain("agent", seconds=1e6)
    sessions = list(cache.sessions)
    assert sum(isinstance(each, Hint) and each.target in sessions for each in gc.get_objects()) < 30
    clock.now += 1.5e6
    for _ in range(10):  # a poll ends a few
        cache.poll()
    assert len(cache.hints) == 1, "the other one has time left"
    clock.now += 1e6
    cache.poll()
    assert outcomes(cache) == {"retain vain": 199, "retain expired": 2}


def test_a_pinned_prompt_stays_until_it_is_unpinned() -> None:
    cache, key = cache_of(), Key(np.arange(16))
    turn(cache, np.arange(17))
    assert cache.hints.pin(key)
    flood(cache, 5)
    assert turn(cache, np.arange(17)) == 16
    cache.hints.unpin(key)
    cache.hints.unpin(key)
    assert outcomes(cache) == {"pin used": 1}
    flood(cache, 5)
    assert turn(cache, np.arange(17)) == 0


def test_what_is_demoted_goes_before_older_texts() -> None:
    cache = cache_of()
    turn(cache, np.arange(200, 217), "old")
    turn(cache, np.arange(17), "agent")
    assert cache.hints.demote("agent")
    flood(cache, 1)
    assert turn(cache, np.arange(200, 217), "old") == 16
    assert turn(cache, np.arange(17), "agent") == 0
    assert outcomes(cache) == {"demote taken": 1}


def test_what_is_shared_does_not_end_with_its_session_and_is_not_superseded() -> None:
    cache = cache_of(pages=40)
    turn(cache, np.arange(17), "agent")
    assert cache.hints.share(Key(np.arange(16)))
    turn(cache, np.arange(33), "agent")
    turn(cache, np.arange(49), "agent")
    cache.end_session("agent")
    for node in cache.tree.state.nodes:
        assert (node.claim is None) == (node.end <= 16)
        assert not any(value.demoted for value in node.device if value is not None and node.end == 16)
    assert turn(cache, [*range(16), *range(300, 310)]) == 16
    cache.hints.unpin(Key(np.arange(16)))
    assert outcomes(cache) == {"share used": 1}


def test_prefetch_brings_a_session_back_before_its_turn() -> None:
    cache = cache_of(has_host=True)
    turn(cache, np.arange(17), "agent")
    flood(cache, 5)
    cache.drain()
    assert cache.tree.match_prefix(Key(np.arange(17)), limit=16).device.length == 0
    assert cache.hints.prefetch("agent")
    cache.drain()
    assert cache.tree.match_prefix(Key(np.arange(17)), limit=16, touch=False).device.length == 16
    with cache.acquire(Key(np.arange(25)), session="agent") as lease:
        assert (lease.cached_tokens, lease.host_tokens) == (16, 0)
    assert outcomes(cache) == {"prefetch used": 1}


def test_a_prefetch_under_way_refuses_nobody() -> None:
    cache = cache_of(pages=8, has_host=True)
    turn(cache, np.arange(17), "agent")
    flood(cache, 3)
    cache.drain()
    assert cache.hints.prefetch("agent")
    with cache.acquire(Key(np.arange(500, 532))) as lease:
        cache.allocate(lease, 32)
    assert not cache.tree.check()
    assert cache.stats().refused == 0


@pytest.mark.parametrize("ends", ["session", "turn", "bound", "again"])
def test_a_prefetch_whose_hint_has_ended_refuses_nobody(ends: str) -> None:
    """Its copy is under way, and what it copies to can be had when it has landed."""
    engine = SimulatedEngine(1, VirtualClock(), Latencies(cancel_ns=1_000_000))
    host = HostTier(page_counts={}, engine=engine, write_policy=WritePolicy.WRITE_THROUGH)
    cache = PrefixCache([FULL], 4, {"full": 8}, host=host, max_hints=1)
    turn(cache, np.arange(24), "agent")
    turn(cache, np.arange(100, 132))
    assert cache.hints.prefetch("agent")
    cache.poll()
    if ends == "session":
        cache.end_session("agent")
    elif ends == "turn":
        with cache.acquire(Key(np.arange(500, 502)), session="agent"):
            pass
    elif ends == "bound":
        with cache.acquire(Key(np.arange(500, 504))) as lease:
            cache.allocate(lease, 4)
            cache.commit(lease, 4)
        assert cache.hints.pin(Key(np.arange(500, 504)))
        assert outcomes(cache) == {"prefetch expired": 1}
    else:
        assert cache.hints.prefetch("agent")
    with cache.acquire(Key(np.arange(300, 332)), reserve_tokens=32):
        assert not cache.hints.loading
    assert cache.stats().refused == 0
    assert not cache.tree.check()
    cache.close()


def test_a_prefetch_goes_from_the_store_to_the_device() -> None:
    stored = StoredCache([FULL])
    stored.compute(range(13))
    stored.forget()
    cache, key = stored.cache, Key(np.arange(13))
    assert cache.hints.prefetch(key)
    cache.drain()
    assert cache.tree.match_prefix(key).device.length == 12
    assert not cache.hints.loading
    pool = cache.stats().pools["full"]
    assert (pool.leased, pool.protected) == (0, 0)
    stored.runner.check()


def test_hints_about_nothing_are_refused_and_absurd_ones_raise() -> None:
    cache = cache_of(max_hints=2)
    for verb in (cache.hints.retain, cache.hints.pin, cache.hints.demote, cache.hints.share, cache.hints.prefetch):
        assert not verb("unknown")
    assert sum(cache.stats().hints.values()) == 5
    turn(cache, np.arange(17), "agent")
    absurd: list[Any] = [-1, 0, float("nan"), "7", [7]]
    for seconds in absurd:
        with pytest.raises(LeaseError):
            cache.hints.retain("agent", seconds)
    with pytest.raises(LeaseError):
        cache.hints.pin([])  # type: ignore[arg-type]
    with pytest.raises(LeaseError):
        cache.hints.retain(Key(np.arange(4)))
    assert not cache.hints.prefetch("agent"), "there is no host tier"
    assert cache.hints.retain("agent")
    assert cache.hints.pin("agent")
    assert cache.hints.share("agent")
    assert len(cache.hints) == 2
    assert outcomes(cache)["retain expired"] == 1
    cache.close()


def test_nothing_of_an_invalidated_session_is_held() -> None:
    cache = cache_of()
    turn(cache, np.arange(17), "agent")
    cache.invalidate()
    hints = cache.hints
    for give in (hints.retain, hints.pin, hints.demote, hints.share, hints.prefetch):
        assert not give("agent")
    assert not cache.tree.check()


def test_all_hints_that_are_open_end_with_the_cache() -> None:
    cache = cache_of()
    turn(cache, np.arange(17), "agent")
    turn(cache, np.arange(100, 117), "used")
    for give in (cache.hints.retain, cache.hints.pin, cache.hints.share):
        assert give("agent")
    assert cache.hints.pin("used")
    turn(cache, np.arange(100, 125), "used")
    cache.close()
    ended = {("retain", "vain"): 1, ("pin", "vain"): 1, ("share", "vain"): 1, ("pin", "used"): 1}
    assert cache.stats().hints == ended and not len(cache.hints)
    assert not cache.hints.has_work
    assert not cache.tree.state.holds and not cache.tree.check()
    cache.close()
    assert cache.stats().hints == ended
    assert not cache.hints.retain("agent") and not cache.hints.prefetch("agent")
    assert cache.stats().hints == {**ended, ("retain", "refused"): 1, ("prefetch", "refused"): 1}


def test_a_prefetch_that_is_under_way_ends_with_the_cache() -> None:
    """One is on its way from the store, and what came for the other is being loaded."""
    cache = session_turns.cache_of([FULL], {"full": 12}, has_host=True)
    turn(cache, np.arange(17), "agent")
    turn(cache, np.arange(100, 148))
    cache.evict({"full": 12})
    assert cache.hints.prefetch("agent") and cache.hints.loading
    cache.close()
    assert sum(cache.stats().hints.values()) == 1 and not cache.hints.has_work
    assert not cache.tree.check()
    stored = StoredCache([FULL])
    stored.compute(range(13))
    stored.forget()
    assert stored.cache.hints.prefetch(Key(np.arange(13)))
    stored.cache.close()
    assert stored.cache.stats().hints == {("prefetch", "vain"): 1}
    assert not stored.cache.tree.check()
