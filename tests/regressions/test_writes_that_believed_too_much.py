"""Writes to a store that left out pages because they were believed to be there, and what followed from that belief."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kinds import FULL, MAMBA
from rank_threads import RankThreads
from stored_cache import StoredCache

from unified_tree import Key
from unified_tree.controllers.ranks import MessageShape
from unified_tree.controllers.storage_tier import PersistPolicy
from unified_tree.controllers.testing import SimulatedJobs

A_WHILE_NS = 11_000_000_000


def test_ranks_that_believe_different_things_write_the_same_boundaries() -> None:
    """One rank's clock is ahead, so it believes nothing; whether a boundary is on host they find out alike."""

    def one(consensus: Any, rank: int) -> tuple[Counter[str], int]:
        cache = StoredCache([FULL], ranks=consensus, host_pages=10, persist=PersistPolicy(recheck_s=10))
        cache.compute(list(range(20)))
        cache.compute(list(range(1000, 1020)))  # the host has room for one of them
        if rank == 1:
            cache.clock.advance(A_WHILE_NS)
        cache.cache.flush()
        storage = cache.cache.storage
        assert storage is not None
        return Counter(cache.drops()), storage.stats().persisted_boundaries

    first, second = RankThreads(2).run(one, MessageShape())
    assert first == second == (Counter({"persist not on host": 1, "host full": 1}), 3)


def test_a_boundary_that_is_not_on_host_is_not_counted_as_written() -> None:
    cache = StoredCache([FULL], host_pages=10)
    cache.compute(list(range(20)))
    cache.compute(list(range(1000, 1020)))
    cache.store.remove("full", cache.store.keys("full"))
    storage = cache.cache.storage
    assert storage is not None
    before = storage.stats().persisted_boundaries
    cache.cache.flush()
    assert cache.drops()["persist not on host"] == 1
    assert storage.stats().persisted_boundaries == before + 1
    cache.end()


@pytest.mark.parametrize("recheck_s", [0.3, 0.6, 1.0])
def test_a_belief_that_lapses_while_a_write_waits_is_no_page_less(recheck_s: float) -> None:
    policy = PersistPolicy(recheck_s=recheck_s, max_open=2, bytes_per_s=2000.0)
    cache = StoredCache([FULL], attach=False, persist=policy)
    cache.attach(writing=SimulatedJobs(2, cache.clock, 1000, spread=0, max_concurrent=1))
    cache.compute(list(range(20)))
    cache.store.remove("full", cache.store.keys("full")[1:2])
    for tokens in (list(range(1000, 1040)), list(range(28))):  # the first is slow, and the other waits behind it
        started = cache.runner.start(tokens, "", [])
        cache.cache.allocate(started.lease, len(tokens))
        cache.runner.compute(started, len(tokens), ())
        cache.runner.commit(started, resumable=True)
        cache.runner.finish(started)
    cache.cache.flush()
    assert cache.like_this().fetch(list(range(29))) == 28
    cache.end()


def test_a_longer_prefix_of_the_same_key_is_another_prompt() -> None:
    cache = StoredCache([FULL, MAMBA])
    cache.compute(list(range(20)))  # a state at 20 only
    twin = cache.like_this()
    whole = Key(list(range(25)))
    twin.cache.prefetch("short", whole.prefix(12))
    twin.cache.prefetch("long", whole.prefix(24))
    twin.cache.drain()
    assert twin.hit(list(range(24)), request="long") == 20
    twin.end()
    cache.end()
