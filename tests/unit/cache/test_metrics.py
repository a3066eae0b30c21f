"""The Prometheus exporter."""

from __future__ import annotations

import numpy as np
from host_cells import HostPages
from kinds import FULL, MAMBA
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from unified_tree import Key
from unified_tree.controllers import HostTier, PrefixCache
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.storage import MemoryStorage, StoredPool
from unified_tree.controllers.storage.restore_point import record_pool
from unified_tree.controllers.storage_tier import StorageTier
from unified_tree.controllers.storage_tier.stored_composition import RECORDS
from unified_tree.controllers.transfer_engines import NullEngine


def scraped(collector: CacheCollector) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(collector)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert len({family.name for family in families}) == len(families), "a family is told once"
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_every_figure_is_exported() -> None:
    tier = HostTier(page_counts={"full": 40, "mamba": 4}, engine=NullEngine())
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 10, "mamba": 5}, host=tier)
    tokens = np.arange(8)
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, 8)
        cache.commit(lease, tokens, dict(lease.save_pages))
    cache.drain()
    samples = scraped(CacheCollector(cache.stats, {"rank": "0"}))
    rank = ("rank", "0")
    assert samples["unified_tree_requests_total", (rank,)] == 1
    assert samples["unified_tree_transfers_total", (("direction", "backup"), rank)] == 1
    assert samples["unified_tree_transferred_pages_total", (("direction", "backup"), rank)] == 5
    full = (("component", "full"), rank)
    assert samples["unified_tree_pool_pages", (*full, ("state", "copied"), ("tier", "host"))] == 4
    assert samples["unified_tree_pool_pages", (*full, ("state", "total"), ("tier", "device"))] == 10
    cache.close()


def test_a_cache_without_a_host_tier_and_without_limits() -> None:
    samples = scraped(CacheCollector(PrefixCache([FULL], 2).stats))
    assert samples["unified_tree_nodes", ()] == 0
    assert not any(dict(labels).get("state") == "total" for _, labels in samples)


def test_a_store_is_exported_too() -> None:
    memory = {"full": HostPages(1), "mamba": HostPages(1)}
    pools = {
        name: StoredPool(name=name, format_digest=name.encode().ljust(32), value_bytes=memory[name].value_bytes)
        for name in memory
    }
    engine = MemoryStorage([*pools.values(), record_pool([pools["mamba"]], RECORDS)])
    storage = StorageTier(engine=engine, pools=pools, memory=memory, weights_version="v1")
    tier = HostTier(page_counts={}, engine=NullEngine())
    cache = PrefixCache([FULL, MAMBA], 2, host=tier, storage=storage)
    tokens = np.arange(8)
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, 8)
        cache.commit(lease, tokens, dict(lease.save_pages))
    cache.drain()
    cache.prefetch("r", Key(np.arange(1000)))
    cache.drain()
    samples = scraped(CacheCollector(cache.stats))
    assert samples["unified_tree_storage_persisted_boundaries_total", ()] == 1
    assert samples["unified_tree_storage_persisted_pages_total", ()] == 5
    assert samples["unified_tree_storage_prefetches_total", ()] == 1
    put = (("call", "put"), ("outcome", "done"))
    assert samples["unified_tree_storage_pages_total", (*put, ("pool", "full"))] == 4
    assert samples["unified_tree_storage_queries_total", (("answer", "asked"), ("pool", "full"))] == 499 - 4 + 4
    assert samples["unified_tree_storage_call_seconds_total", (("call", "put"), ("pool", "mamba"))] > 0
    assert samples["unified_tree_storage_degraded", ()] == 0
    cache.close()
