"""Every eviction is counted and told, whoever asked for it."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from kinds import FULL, MAMBA

from unified_tree import ConfigurationError, Key, MissCause, Tier
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.inspector import Inspector
from unified_tree.controllers.inspector.recording_page import read_recording
from unified_tree.controllers.inspector.tape import EVENT_FIELDS
from unified_tree.controllers.transfer_engines import NullEngine


def serve(cache: PrefixCache, tokens: list[int], namespace: str = "") -> None:
    with cache.acquire(Key(tokens, namespace)) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, tokens, dict(lease.save_pages))


def test_what_the_embedder_evicts_is_counted_by_pool() -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 40, "mamba": 9})
    for first in range(0, 400, 100):
        serve(cache, list(range(first, first + 9)))
    freed = cache.evict({"full": 5, "mamba": 3}).freed
    stats = cache.stats()
    assert freed["full"].size >= 5 and freed["mamba"].size >= 3
    assert stats.pools["full"].victims == 2, "two paths, whose states went along"
    assert stats.pools["mamba"].victims == 1
    assert {name: pool.evicted_pages for name, pool in stats.pools.items()} == {name: ids.size for name, ids in freed.items()}
    assert stats.evictions == 3
    for name, allocator in cache.device.allocators.items():
        assert allocator.used_pages == cache.tree.pool(name).used_pages


def test_pages_that_came_free_with_another_pools_victims_count() -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 40, "mamba": 9})
    for first in range(0, 400, 100):
        serve(cache, list(range(first, first + 9)))
    result = cache.evict({"full": 8, "mamba": 2})
    assert {name: ids.size for name, ids in result.freed.items()} == {"full": 8, "mamba": 2}
    assert (result.victims, result.deleted_nodes) == (2, 2)
    assert cache.stats().pools["mamba"].victims == 0


def test_an_eviction_on_host_is_counted_there() -> None:
    host = HostTier(page_counts={"full": 40}, engine=NullEngine())
    cache = PrefixCache([FULL], 2, {"full": 40}, host=host)
    serve(cache, list(range(8)))
    cache.drain()
    assert cache.evict({"full": 4}, Tier.HOST).freed["full"].size == 4
    stats = cache.stats()
    assert (stats.host_pools["full"].victims, stats.pools["full"].victims, stats.evictions) == (1, 0, 0)


@pytest.mark.parametrize("needs", [{"full": 2, "nothing": 1}, {"full": 2, "mamba": -1}, {"full": 2, "mamba": "1"}])
def test_nothing_goes_if_one_need_is_wrong(needs: dict[str, Any]) -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 40, "mamba": 9})
    serve(cache, list(range(9)))
    with pytest.raises(ConfigurationError):
        cache.evict(needs)
    assert cache.stats().evictions == 0 and cache.tree.node_count == 1


def test_it_is_on_the_tape_and_in_the_ledger_in_favour_of_nobody(tmp_path: FilePath) -> None:
    cache = PrefixCache([FULL], 2, {"full": 40})
    serve(cache, list(range(8)), "shop")
    with Inspector.record(cache, tmp_path / "cache.rec") as inspector:
        cache.evict({"full": 3})
        inspector.record_tree()
    [told] = read_recording(tmp_path / "cache.rec").events(0)["events"]
    event = dict(zip(EVENT_FIELDS, told[1:], strict=True))
    assert (event["kind"], event["component"], event["for"], event["pages"]) == ("evicted", "full", None, 4)
    assert event["owners"] == [["shop", 1]]
    lease = cache.acquire(Key(np.arange(8), "shop"))
    assert lease.misses[0].cause is MissCause.EVICTED
    assert lease.misses[0].eviction is not None and lease.misses[0].eviction.beneficiary is None
    assert cache.ledger.evicted == {(0, Tier.DEVICE): 6}
