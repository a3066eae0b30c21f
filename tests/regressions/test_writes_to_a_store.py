"""Writes to a store: what is left out of them, and under which names ranks write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from threading import Lock
from typing import Any

import pytest
from kinds import FULL, MAMBA
from rank_threads import RankThreads
from stored_cache import Kept, StoredCache

from unified_tree import Component, ConfigurationError, Key, PageError, Path
from unified_tree.components import Composition
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.pools import DevicePool, HostLayout, PagePair, host_pools, mha_format
from unified_tree.controllers.ranks import Consensus, LocalConsensus, MessageShape
from unified_tree.controllers.storage import FileStorage
from unified_tree.controllers.storage_tier import PersistPolicy, StorageTier, stored_pools
from unified_tree.controllers.testing import SimulatedJobs
from unified_tree.controllers.transfer_engines import CpuEngine
from unified_tree.declare.page_format import WHOLE

# Writes to a store that left out pages because they were believed to be there, and what followed from that belief.


def test_ranks_that_believe_different_things_write_the_same_boundaries() -> None:
    """One rank's clock is ahead, so it believes nothing; whether a boundary is on host they find out alike."""

    def one(consensus: Any, rank: int) -> tuple[Counter[str], int]:
        cache = StoredCache([FULL], ranks=consensus, host_pages=10, persist=PersistPolicy(recheck_s=10))
        cache.compute(list(range(20)))
        cache.compute(list(range(1000, 1020)))  # the host has room for one of them
        if rank == 1:
            cache.clock.advance(11 * 10**9)
        cache.cache.flush()
        return Counter(cache.drops()), cache.figures.persisted_boundaries

    first, second = RankThreads(2).run(one, MessageShape())
    assert first == second == (Counter({"persist not on host": 1, "host full": 1}), 3)


def test_a_boundary_that_is_not_on_host_is_not_counted_as_written() -> None:
    cache = StoredCache([FULL], host_pages=10)
    cache.compute(list(range(20)))
    cache.compute(list(range(1000, 1020)))
    cache.store.remove("full", cache.store.keys("full"))
    before = cache.figures.persisted_boundaries
    cache.cache.flush()
    assert cache.drops()["persist not on host"] == 1
    assert cache.figures.persisted_boundaries == before + 1
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


PROMPT = list(range(41))
WAYS: dict[str, list[str | None]] = {
    "all": [None],
    "one namespace": ["lora"],
    "one after the other": ["lora", None],
    "one forgotten": ["lora", "b", "c"],
}
"""What is invalidated, in this order; None for all."""


def invalidate(cache: StoredCache, way: str) -> None:
    for namespace in WAYS[way]:
        cache.runner.invalidate(namespace)


class Shared:
    """One store for all ranks, in which the pages of one of them are understood by the others."""

    def __init__(self) -> None:
        self.known: dict[bytes, Any] = {}
        self._kept: Kept | None = None
        self._lock = Lock()

    def open(self, pools: list[Any]) -> Kept:
        with self._lock:
            self._kept = self._kept or Kept(pools)
            return self._kept

    def cache(self, consensus: Consensus | None, rank: int = 0) -> StoredCache:
        written = None if rank == 0 else ()
        return StoredCache([FULL], store=self.open, ranks=consensus, written=written, known=self.known, max_versions=2)


def one_rank(consensus: Consensus, rank: int, shared: Shared, way: str) -> list[int]:
    cache = shared.cache(consensus, rank)
    cache.compute(PROMPT, "lora")
    invalidate(cache, way)
    found = [cache.fetch(PROMPT, "lora")]
    cache.compute(PROMPT, "lora")
    cache.forget()
    found.append(cache.fetch(PROMPT, "lora"))
    cache.end()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_ranks_agree_on_weights_without_a_name(way: str) -> None:
    """`invalidate()` without a name drew a random one on each rank: a pool that one writes was never found by the others
    again. The name comes from a session that rank 0 draws when the ranks are started, so nobody else has it either.
    """
    shared = Shared()
    assert RankThreads(2).run(one_rank, shared=shared, way=way) == [[0, 40]] * 2
    later: Consensus | None
    for later in (None, LocalConsensus()):
        other = shared.cache(later)
        other.runner.versions["lora"] = 1_000_000  # of its own: a byte of anybody else's is a wrong one
        invalidate(other, way)
        assert other.fetch(PROMPT, "lora") == 0
        other.end()


# The trailer of a stored page was written over the page where a pool had too little room for it, or nothing was stored.

FORMAT = mha_format("full", layer_ids=(0,), page_size=4, kv_heads=2, head_dim=8, shard=WHOLE)
MODEL = Composition(name="m", page_size=4, components=(Component(name="full", coverage=Path(), format=FORMAT),))
DIRECT = HostLayout.PAGE_FIRST_DIRECT


@pytest.mark.parametrize("trailer_bytes", [0, 32, 63, 128])
def test_pools_with_other_trailers_are_refused(trailer_bytes: int) -> None:
    host = host_pools({"full": FORMAT}, {"full": 8}, layout=DIRECT, trailer_bytes=trailer_bytes)
    with pytest.raises(ConfigurationError, match=f"trailer of 64 bytes.* bytes and a trailer of {trailer_bytes}"):
        StorageTier.open("memory", MODEL, memory=host, weights_version="v1")


@pytest.mark.parametrize("in_memory", [0, 32, 64, 128])
@pytest.mark.parametrize("in_store", [0, 32, 64, 128])
def test_a_store_is_attached_only_with_a_trailers_room_on_both_sides(in_memory: int, in_store: int, tmp_path: FilePath) -> None:
    device = DevicePool(FORMAT, 4)
    host = host_pools({"full": FORMAT}, {"full": 8}, layout=DIRECT, trailer_bytes=in_memory)
    [honest] = stored_pools(MODEL, layout=DIRECT)
    pool = replace(honest, value_bytes=FORMAT.page_bytes + in_store)
    moved = CpuEngine({"full": PagePair(device, host["full"])})
    cache = PrefixCache(MODEL.components, 4, {"full": 4}, host=HostTier(page_counts={"full": 8}, engine=moved))
    engine = FileStorage([pool], tmp_path, 1 << 20)
    tier = StorageTier(engine=engine, pools={"full": pool}, memory=host, weights_version="v1")
    if (in_memory, in_store) == (64, 64):
        cache.attach_storage(tier)
    else:
        found = f"full: its host pages are {FORMAT.page_bytes} bytes and a trailer of {in_memory}"
        with pytest.raises(ConfigurationError, match=found):
            cache.attach_storage(tier)
        engine.close()
    cache.close()


class Refusing(Kept):
    """A store that refuses each page that it is given, as one that it cannot be given."""

    def put(self, pool: str, keys: Sequence[bytes], pages: Sequence[memoryview]) -> Any:  # noqa: ARG002
        """Nothing gets in."""
        raise PageError(f"{pool}: no page of mine")


def test_what_could_not_be_persisted_is_told_by_the_stores_own_stats() -> None:
    cache = StoredCache([FULL], store=Refusing)
    cache.compute(range(8))
    figures = cache.figures
    assert (figures.persisted_pages, figures.errors) == (0, 1)
    assert figures.last_error is not None and "PageError: full: no page of mine" in figures.last_error
    cache.end()
