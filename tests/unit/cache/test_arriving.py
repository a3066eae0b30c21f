"""Leases whose state arrives from another server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_tree import Component, Key, LeaseError, OutOfPagesError, Path, Point, Trailing
from unified_tree.controllers import PrefixCache

PROMPT = np.arange(18)
FULL = Component(name="full", coverage=Path())
SWA = Component(name="swa", coverage=Trailing(7))
MAMBA = Component(name="mamba", coverage=Point())


def used(cache: PrefixCache) -> dict[str, int]:
    return {name: pool.used for name, pool in cache.stats().pools.items()}


def arrive(cache: PrefixCache, tokens: Any) -> None:
    """A prompt comes whole, and its request ends."""
    with cache.acquire(Key(tokens), arriving=True) as lease:
        cache.commit(lease, len(tokens))


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache([FULL, SWA, MAMBA], 4, {"full": 12, "swa": 6, "mamba": 3})


def test_pages_are_reserved_for_the_prompt_and_its_last_window(cache: PrefixCache) -> None:
    lease = cache.acquire(Key(PROMPT), arriving=True)
    assert (lease.cached_tokens, lease.compute_from, lease.is_arriving, lease.state_tokens) == (0, 18, True, None)
    assert lease.write_from == {"full": 0, "swa": 8, "mamba": 18}
    assert (lease.pages("swa") >= 0).tolist() == [False, False, True, True, True]
    cache.commit(lease, 18)
    assert (lease.is_arriving, lease.state_tokens, lease.committed) == (False, 18, 16)
    cache.allocate(lease, 19)
    cache.release(lease)
    assert used(cache) == {"full": 4, "swa": 2, "mamba": 0}


def test_a_path_does_not_come_again_where_its_window_and_its_state_are_gone(cache: PrefixCache) -> None:
    arrive(cache, PROMPT)
    cache.evict({"swa": 6})
    assert used(cache)["swa"] == 0
    with cache.acquire(Key(PROMPT)) as plain:
        assert plain.cached_tokens == 0, "no state was kept"
    with cache.acquire(Key([*PROMPT[:16], 7, 7, 7, 7]), arriving=True) as lease:
        assert lease.write_from == {"full": 16, "swa": 12, "mamba": 20}
    stats = cache.stats()
    assert (stats.prompt_tokens, stats.hit_tokens, stats.arriving_tokens) == (56, 16, 18 + 4)
    assert sum(stats.misses.values()) == 18


def test_a_window_that_is_here_does_not_come_again(cache: PrefixCache) -> None:
    arrive(cache, PROMPT)
    with cache.acquire(Key([*PROMPT, 7, 7, 7, 7]), arriving=True) as lease:
        assert lease.write_from["swa"] == 16
        assert (lease.pages("swa") >= 0).tolist() == [False] * 3 + [True] * 3


def test_what_has_not_arrived_goes_back(cache: PrefixCache) -> None:
    lease = cache.acquire(Key(PROMPT), arriving=True)
    cache.commit(lease, 9)
    assert used(cache)["swa"] == 3
    cache.release(lease)
    assert used(cache) == {"full": 2, "swa": 0, "mamba": 0}
    with cache.acquire(Key(PROMPT), arriving=True) as again:
        assert again.write_from["full"] == 8


def test_a_preemption_publishes_nothing_that_is_on_its_way(cache: PrefixCache) -> None:
    lease = cache.acquire(Key(PROMPT), arriving=True)
    assert cache.preempt(lease, lease.compute_from) == 0
    assert not any(used(cache).values())


def test_nothing_runs_on_a_lease_that_is_arriving(cache: PrefixCache) -> None:
    lease = cache.acquire(Key(PROMPT), arriving=True)
    batch = cache.batch(max_leases=2, max_tokens=40)
    with pytest.raises(LeaseError, match="arrived"):
        batch.add(lease)
    with pytest.raises(LeaseError, match="cut"):
        cache.truncate(lease, 17)
    with pytest.raises(LeaseError, match="running state"):
        cache.commit(lease, 16, {16: lease.state_page or 0})
    cache.commit(lease, 18)
    batch.add(lease)
    assert batch.allocate(3)["full"].indices.tolist() == [5]
    batch.advance()


def test_a_prompt_for_which_there_is_no_room_changes_nothing(cache: PrefixCache) -> None:
    arrive(cache, PROMPT)
    before = cache.tree.dump()
    with pytest.raises(OutOfPagesError):
        cache.acquire(Key([*PROMPT, *range(40)]), arriving=True)
    with pytest.raises(LeaseError, match="arriving"):
        cache.acquire(Key(PROMPT), arriving=3)  # type: ignore[arg-type]
    assert (cache.tree.dump(), cache.lease_count) == (before, 0)


def test_what_arrives_of_old_weights_is_not_published(cache: PrefixCache) -> None:
    lease = cache.acquire(Key(PROMPT), arriving=True)
    cache.invalidate()
    cache.commit(lease, 18)
    assert not lease.is_arriving
    cache.release(lease)
    assert not any(used(cache).values())
