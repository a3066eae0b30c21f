"""Persists: what goes to the store in which order, what is passed over, and what makes them stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kinds import DRAFT, FULL, INDEXER, MAMBA, SETS, swa
from stored_cache import Kept, StoredCache

from unified_tree import Component, Key, Tier
from unified_tree.controllers.storage import Outcome
from unified_tree.controllers.storage_tier import PersistPolicy
from unified_tree.controllers.storage_tier.stored_composition import RECORDS

PROMPT = list(range(41))


class Full(Kept):
    """A store that drops some puts."""

    left: int | None = None
    pool = "full"

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> Any:
        if self.left is None or pool != self.pool:
            return super().put(pool, keys, pages)
        kept = min(self.left, len(keys))
        self.left -= kept
        return [*super().put(pool, keys[:kept], pages[:kept]), *[Outcome.DROPPED] * (len(keys) - kept)]


def with_engine(kinds: list[Component], **settings: Any) -> tuple[StoredCache, Full]:
    cache = StoredCache(kinds, attach=False, **settings)
    engine = Full(cache.every_pool)
    cache._kept = engine
    cache.attach()
    return cache, engine


def figures(cache: StoredCache) -> Any:
    assert cache.cache.storage is not None
    return cache.cache.storage.stats()


@pytest.mark.parametrize("threads", [False, True])
def test_pages_come_before_what_stands_on_them(threads: bool) -> None:
    cache = StoredCache([MAMBA, DRAFT, FULL, swa(5)], threads=threads)
    cache.compute(PROMPT, checkpoints=[20])
    order = [pool for call, pool, _ in cache.store.calls if call == "put"]
    assert order[0] == "full"
    for begin in [index for index, pool in enumerate(order) if pool == "full"]:
        rest = order[begin:]
        assert rest.index("full") < rest.index("mamba") < rest.index(RECORDS)
        assert rest.index("swa") < rest.index(RECORDS)
    assert figures(cache).persisted_boundaries == order.count(RECORDS) >= 1
    cache.end()


@pytest.mark.parametrize("pool", ["full", "mamba", "swa"])
def test_a_page_that_does_not_get_in_ends_it_without_a_record(pool: str) -> None:
    cache, engine = with_engine([FULL, swa(5), MAMBA], persist=PersistPolicy(batch_pages=3))
    engine.left, engine.pool = 0 if pool == "mamba" else 1, pool
    cache.compute(PROMPT, checkpoints=[40])
    assert engine.count("put", RECORDS) == 0
    assert cache.drops() == {"persist incomplete: store dropped": 1}
    assert figures(cache).persisted_boundaries == 0
    if pool == "full":
        assert engine.keys("mamba") == engine.keys("swa") == []
        assert engine.count("put", "full") <= 3
    assert cache.like_this().fetch(PROMPT) == 0
    engine.left = None
    cache.cache.flush()
    assert cache.like_this().fetch(PROMPT) == 40
    cache.end()


def test_what_is_known_is_not_asked_for_again() -> None:
    cache = StoredCache([FULL])
    cache.compute(PROMPT[:21])
    cache.store.calls.clear()
    cache.compute(PROMPT)
    assert cache.store.count("put", "full") == cache.store.count("exists", "full") - 1 == 10, "and of the known the last"
    assert figures(cache).known_pages == 20


def test_what_another_server_stored_is_asked_for_but_not_written() -> None:
    cache = StoredCache([FULL])
    cache.compute(PROMPT[:31])
    twin = cache.like_this()
    cache.store.calls.clear()
    twin.compute(PROMPT)
    assert twin.store.count("exists", "full") == 20
    assert twin.store.count("put", "full") == 5
    assert figures(twin).persisted_pages == 5


def test_what_was_fetched_is_known() -> None:
    cache = StoredCache([FULL])
    cache.compute(PROMPT[:31])
    twin = cache.like_this()
    twin.fetch(PROMPT[:31])
    cache.store.calls.clear()
    twin.compute(PROMPT)
    assert twin.store.count("exists", "full") == 6, "those that are new, and the last of the known"


def test_pages_lost_by_the_store_are_stored_again_once_that_is_seen() -> None:
    cache = StoredCache([FULL])
    cache.compute(PROMPT)
    cache.store.remove("full", [cache.store.keys("full")[5]])
    twin = cache.like_this()
    cache.forget()
    assert cache.fetch(PROMPT[:21]) == 10  # a shorter prompt finds out
    cache.compute(PROMPT)
    assert twin.fetch(PROMPT) == 40


def test_a_corrupt_page_is_stored_again() -> None:
    cache = StoredCache([FULL])
    cache.compute(PROMPT)
    cache.store.spoil("full", cache.store.keys("full")[5])
    cache.forget()
    assert cache.fetch(PROMPT) == 10
    cache.compute(PROMPT)
    assert cache.like_this().fetch(PROMPT) == 40


def test_what_was_stored_is_checked_again_after_a_while() -> None:
    """Though the prefix grew all the time, and its end was seen just now."""
    cache = StoredCache([FULL], persist=PersistPolicy(recheck_s=10))
    cache.compute(PROMPT[:20])
    cache.store.remove("full", cache.store.keys("full")[:3])
    for length in range(22, 42, 2):
        cache.clock.advance(6_000_000_000)
        cache.compute(PROMPT[:length])
    assert cache.like_this().fetch(PROMPT) == 40


def test_a_draft_that_came_later_is_stored_too() -> None:
    cache = StoredCache([FULL, DRAFT])
    cache.compute(PROMPT, without=["draft"])
    assert cache.store.keys("draft") == []
    cache.forget()
    cache.compute(PROMPT)
    assert len(cache.store.keys("draft")) == 20


def test_an_optional_pool_that_fails_does_not_end_it() -> None:
    cache, engine = with_engine([FULL, DRAFT, MAMBA])
    engine.left, engine.pool = 2, "draft"
    cache.compute(PROMPT, checkpoints=[40])
    assert cache.like_this().fetch(PROMPT) == 40
    engine.left = None
    cache.cache.flush()
    assert len(engine.keys("draft")) == 20


def test_bandwidth_is_bounded_by_pauses() -> None:
    cache = StoredCache([FULL], persist=PersistPolicy(bytes_per_s=1e6, batch_pages=4))
    before = cache.clock.now
    cache.compute(PROMPT)
    written = figures(cache).persisted_bytes
    assert written == 20 * cache.pools["full"].value_bytes
    assert cache.clock.now - before >= written / 1e6 * 1e9


def test_the_queue_is_bounded_and_the_oldest_goes() -> None:
    cache = StoredCache([FULL], persist=PersistPolicy(max_waiting=2))
    for turn in range(6):
        cache.runner.serve([turn] * 9, str(turn))
    controller = cache.cache.controller
    assert controller is not None
    controller.drain()
    assert figures(cache).boundaries_waiting == 2
    cache.cache.drain()
    assert cache.drops() == {"persist queue full": 4}
    twin = cache.like_this()
    assert [twin.fetch([turn] * 9, str(turn)) for turn in range(6)] == [0, 0, 0, 0, 8, 8]
    cache.cache.flush()
    assert [twin.fetch([turn] * 9, str(turn)) for turn in range(6)] == [8] * 6
    assert cache.drops() == {"persist queue full": 4}


def test_a_boundary_that_is_gone_when_its_turn_comes_is_dropped() -> None:
    cache = StoredCache([FULL])
    cache.runner.serve(PROMPT)
    controller = cache.cache.controller
    assert controller is not None
    controller.drain()
    cache.forget()
    cache.cache.drain()
    assert cache.drops() == {"persist stale": 1}
    assert not cache.store.calls
    cache.end()


def test_the_pages_being_written_are_pinned() -> None:
    cache = StoredCache([FULL, MAMBA], persist=PersistPolicy(batch_pages=1))
    cache.runner.serve(PROMPT, checkpoints=[40])
    while not cache.store.calls:
        cache.step()
    cache.forget()
    assert cache.reach(PROMPT) == 40
    cache.cache.drain()
    cache.forget()
    assert cache.reach(PROMPT) == 0
    assert cache.like_this().fetch(PROMPT) == 40
    cache.end()


@pytest.mark.parametrize("steps", range(0, 24, 3))
@pytest.mark.parametrize("way", ["detached", "replaced", "closed"])
def test_a_persist_may_be_broken_off_at_any_step(steps: int, way: str) -> None:
    cache = StoredCache(SETS["everything"], persist=PersistPolicy(batch_pages=2))
    cache.runner.serve(PROMPT, checkpoints=[40])
    cache.step(steps)
    if way == "closed":
        cache.cache.close()
    else:
        cache.cache.detach_storage()
    assert not any(pool.protected for pool in cache.cache.stats().host_pools.values())
    assert cache.like_this().fetch(PROMPT) in (0, 40)
    if way == "replaced":
        cache.attach()
        cache.cache.flush()
        assert cache.like_this().fetch(PROMPT) == 40
    if way != "closed":
        cache.end()


def test_what_was_on_host_before_the_store_came_is_flushed_to_it() -> None:
    cache = StoredCache([FULL, MAMBA], attach=False, persist=PersistPolicy(max_waiting=2))
    for turn in range(5):
        cache.compute([turn] * 9, checkpoints=[8])
    cache.attach()
    cache.cache.flush()
    assert cache.drops() == {}
    twin = cache.like_this()
    assert [twin.fetch([turn] * 9) for turn in range(5)] == [8] * 5


def test_a_rank_stores_only_what_it_writes() -> None:
    kinds = [FULL, INDEXER, MAMBA]
    others = StoredCache(kinds, written=["full", "mamba"])
    others.compute(PROMPT, checkpoints=[40])
    assert others.store.keys("indexer") == []
    assert len(others.store.keys("full")) == 20
    assert others.like_this().fetch(PROMPT) == 0
    writer = others.like_this(written=["indexer"])
    writer.compute(PROMPT, checkpoints=[40])
    assert len(writer.store.keys("indexer")) == 20
    assert others.like_this().fetch(PROMPT) == 40


def test_a_state_that_is_not_on_host_leaves_the_path() -> None:
    cache = StoredCache([FULL, MAMBA], attach=False)
    cache.compute(PROMPT, checkpoints=[40])
    tree, controller = cache.cache.tree, cache.cache.controller
    assert controller is not None
    controller.host.free_evicted(tree.evict({"mamba": 9}, Tier.HOST))
    boundary = tree.match_prefix(Key(PROMPT), limit=40).reachable
    assert [tree.pages(boundary, name, Tier.HOST).size for name in ("full", "mamba")] == [20, 0]
    cache.attach()
    assert cache.cache.storage is not None
    cache.cache.storage.backed_up(boundary)
    cache.cache.drain()
    assert cache.drops() == {"persist incomplete: window or state not on host": 1}
    assert [len(cache.store.keys(name)) for name in ("full", "mamba", RECORDS)] == [20, 0, 0]


def test_invalidated_boundaries_are_not_stored() -> None:
    cache = StoredCache([FULL])
    cache.runner.serve(PROMPT)
    controller = cache.cache.controller
    assert controller is not None
    controller.drain()
    cache.runner.invalidate(None, "weights 1")
    cache.cache.flush()
    assert not cache.store.keys("full")
