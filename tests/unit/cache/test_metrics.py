"""The Prometheus exporter."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from kinds import FULL, MAMBA, OWN_DRAFT, swa
from metered_cache import metered_cache
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from unified_tree import Component, Key, Path
from unified_tree.controllers import HostTier, LoadCost, PrefixCache
from unified_tree.controllers.cache.metric_aliases import SGLANG_POOLS
from unified_tree.controllers.cache.metrics import CacheCollector
from unified_tree.controllers.transfer_engines import NullEngine
from unified_tree.declare.settings import TreeSettings
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError


class Recorded(NamedTuple):
    """Counters of one engine.

    Attributes:
        version: of its package.
        source: the module that declares them.
        counters: the names as they are scraped, with their labels beside those that all metrics of the engine have.
    """

    version: str
    source: str
    counters: dict[str, set[str]]


RECORDED = {
    "vllm": Recorded(
        version="0.32.0",
        source="vllm/v1/metrics/loggers.py",
        counters={
            "vllm:prefix_cache_queries_total": set(),
            "vllm:prefix_cache_hits_total": set(),
            "vllm:external_prefix_cache_queries_total": set(),
            "vllm:external_prefix_cache_hits_total": set(),
            "vllm:prompt_tokens_cached_by_source_total": {"source"},
        },
    ),
    "sglang": Recorded(
        version="0.5.23",
        source="sglang/srt/observability/metrics_collector.py",
        counters={
            "sglang:prompt_tokens_total": {"is_streaming"},
            "sglang:cached_tokens_total": {"cache_source"},
            "sglang:evicted_tokens_total": set(),
            "sglang:load_back_tokens_total": {"pool"},
            "sglang:load_back_bytes_total": set(),
            "sglang:hicache_backup_tokens_total": {"pool"},
            "sglang:hicache_backup_bytes_total": set(),
        },
    ),
}
SOURCES = {
    "vllm:prompt_tokens_cached_by_source_total": {"device", "host", "p2p", "disk", "external_unspecified"},
    "sglang:cached_tokens_total": {"device", "host", "storage", "total"},
}
"""The values of the label that says where tokens came from; SGLang's `total` is for requests of which it does not know."""


Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]
ALWAYS_LOAD = LoadCost(flops_per_s=1.0)


def serve(cache: PrefixCache, tokens: np.ndarray) -> None:
    """One request, whose states are saved where they are due."""
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, len(tokens))
        cache.commit(lease, tokens, {length: page for length, page in lease.save_pages.items() if length <= len(tokens)})


def with_host() -> PrefixCache:
    """The device holds two of three prompts: the first is asked for twice more and comes from host, then from device."""
    tier = HostTier(page_counts={"full": 40, "mamba": 8}, engine=NullEngine(), load_cost=ALWAYS_LOAD)
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 10, "mamba": 5}, host=tier)
    for prompt in range(3):
        serve(cache, np.arange(9) + 100 * prompt)
        cache.drain()
    with cache.acquire(Key(np.arange(9))) as lease:
        assert lease.is_loading
        cache.drain()
        assert lease.host_tokens == 8
    with cache.acquire(Key(np.arange(9))):
        pass
    return cache


def scraped(collector: CacheCollector) -> Scrape:
    registry = CollectorRegistry()
    registry.register(collector)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert len({family.name for family in families}) == len(families), "a family is told once"
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_every_figure_is_exported() -> None:
    tier = HostTier(page_counts={"full": 40, "mamba": 4}, engine=NullEngine())
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 10, "mamba": 5}, host=tier)
    tokens = np.arange(9)
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, 9)
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
    cache = metered_cache()
    tokens = np.arange(9)
    with cache.acquire(Key(tokens)) as lease:
        cache.allocate(lease, 9)
        cache.commit(lease, tokens, dict(lease.save_pages))
    cache.drain()
    cache.prefetch("r", Key(np.arange(1000)))
    cache.drain()
    samples = scraped(CacheCollector(cache.stats))
    assert samples["unified_tree_storage_persisted_boundaries_total", ()] == 1
    assert samples["unified_tree_storage_persisted_pages_total", ()] == 9
    assert samples["unified_tree_storage_prefetches_total", ()] == 1
    put = (("call", "put"), ("outcome", "done"))
    assert samples["unified_tree_storage_pages_total", (*put, ("pool", "full"))] == 4
    assert samples["unified_tree_storage_queries_total", (("answer", "asked"), ("pool", "full"))] == 499 - 4 + 4
    assert samples["unified_tree_storage_call_seconds_sum", (("call", "put"), ("pool", "mamba"))] > 0
    assert samples["unified_tree_storage_call_seconds_count", (("call", "put"), ("pool", "mamba"))] == 1
    assert samples["unified_tree_storage_degraded", ()] == 0
    assert samples["unified_tree_storage_quarantined_total", (("pool", "full"),)] == 0, "there before the first one"
    cache.close()


def test_each_missed_token_is_exported_under_one_cause() -> None:
    cache = PrefixCache([FULL, swa(3)], 2, {"full": 12, "swa": 7})
    for prompt in (np.arange(12), np.append(np.arange(8), 50 + np.arange(5)), 100 + np.arange(14), np.arange(12)):
        serve(cache, prompt)
    stats = cache.stats()
    assert list(stats.misses) == [cause.label for cause in MissCause], "those without a token, too"
    assert sum(stats.misses.values()) == stats.prompt_tokens - stats.hit_tokens
    assert sum(stats.evicted_misses.values()) == stats.misses["evicted"] > 0
    assert {tier for _, tier in stats.evicted_misses} == {"device"}
    samples = scraped(CacheCollector(cache.stats))
    assert {cause: samples["unified_tree_miss_tokens_total", (("cause", cause),)] for cause in stats.misses} == stats.misses
    for (component, tier), count in stats.evicted_misses.items():
        assert samples["unified_tree_evicted_miss_tokens_total", (("component", component), ("tier", tier))] == count
    memory = stats.miss_memory
    assert memory is not None and memory.remembered and memory.size_bytes
    assert samples["unified_tree_miss_memory_bytes", ()] == memory.size_bytes
    assert samples["unified_tree_miss_memory_prefixes", (("state", "whole"),)] == memory.remembered
    assert samples["unified_tree_miss_memory_forgotten_total", ()] == 0


def crowded(others: int) -> PrefixCache:
    """A prompt that comes back, each time after one of so many other namespaces has taken its room."""
    cache = PrefixCache([FULL], 2, {"full": 8})
    for number in range(others):
        for namespace in ("small", f"greedy {number}"):
            with cache.acquire(Key(np.arange(12), namespace)) as lease:
                cache.allocate(lease, 12)
                cache.commit(lease, np.arange(12))
    with cache.acquire(Key(np.arange(12), "small")):
        pass
    return cache


def test_evicted_misses_are_exported_by_how_short_the_pool_was() -> None:
    cache = crowded(3)
    samples = scraped(CacheCollector(cache.stats))
    pool = (("component", "full"), ("tier", "device"))
    evicted = cache.stats().evicted_misses["full", "device"]
    buckets = {
        float(dict(labels)["le"]): count
        for (name, labels), count in samples.items()
        if name == "unified_tree_evicted_miss_short_by_pages_bucket"
    }
    assert buckets[float("inf")] == evicted == samples["unified_tree_evicted_miss_tokens_total", pool] > 0
    assert list(buckets.values()) == sorted(buckets.values())
    [(_, sizes)] = cache.stats().evicted_short_by.items()
    assert {bound: sum(sizes[: int(bound).bit_length() + 1]) for bound in buckets if bound < 1 << 40} == {
        bound: count for bound, count in buckets.items() if bound < 1 << 40
    }
    assert buckets[0.0] == 0 and buckets[15.0] == evicted, "twice the pool would have kept them"


@pytest.mark.parametrize("others", [3, 40])
def test_evicted_misses_are_exported_by_who_got_the_room(others: int) -> None:
    cache = crowded(others)
    stats = cache.stats()
    label = "unified_tree_evicted_miss_beneficiary_tokens_total"
    exported = {
        dict(labels)["namespace"]: count
        for (name, labels), count in scraped(CacheCollector(cache.stats)).items()
        if name == label
    }
    assert sum(exported.values()) == sum(stats.evicted_beneficiaries.values()) == stats.misses["evicted"] > 0
    assert len(exported) == min(others, 33), "a bounded set of labels"
    assert ("(others)" in exported) == (others > 32)
    assert exported["greedy 0"] == stats.evicted_beneficiaries["greedy 0"]


def test_ages_are_exported_as_histograms() -> None:
    cache = PrefixCache([FULL], 2, {"full": 4})
    for prompt in (np.arange(8), np.arange(8), 100 + np.arange(8)):
        serve(cache, prompt)
    samples = scraped(CacheCollector(cache.stats))
    pool = (("component", "full"), ("tier", "device"))
    victims = cache.stats().pools["full"].victims
    for name, count in (("reuse_gap", 1), ("idle_before_eviction", victims), ("lifetime", victims)):
        assert samples[f"unified_tree_{name}_seconds_count", pool] == count
        assert samples[f"unified_tree_{name}_seconds_bucket", (pool[0], ("le", "1.024"), pool[1])] == count
        assert 0 <= samples[f"unified_tree_{name}_seconds_sum", pool] < 60


def test_the_memory_of_misses_tells_when_it_is_too_small() -> None:
    settings = TreeSettings(ghost_bytes=600, faded_ghosts=1)
    cache = PrefixCache([FULL], 2, {"full": 4}, settings=settings)
    for prompt in range(6):
        serve(cache, np.arange(8) + 100 * prompt)
    memory = cache.stats().miss_memory
    assert memory is not None
    assert (memory.remembered, memory.faded) == (1, 1) and memory.forgotten == 3


def test_without_that_memory_no_cause_is_exported() -> None:
    cache = PrefixCache([FULL], 2, {"full": 8}, settings=TreeSettings(ghost_bytes=0))
    serve(cache, np.arange(8))
    stats = cache.stats()
    assert (stats.misses, stats.evicted_misses, stats.miss_details, stats.miss_memory) == ({}, {}, {}, None)
    assert (stats.evicted_short_by, stats.evicted_beneficiaries) == ({}, {})
    assert not any("miss" in name or "lifetime" in name for name, _ in scraped(CacheCollector(cache.stats)))


def test_details_are_exported_but_for_names_of_namespaces() -> None:
    cache = PrefixCache([FULL, MAMBA], 2, {"full": 20, "mamba": 6})
    with cache.acquire(Key(np.arange(8))) as lease:  # saves no state
        for end in (4, 8):
            cache.allocate(lease, end)
            cache.commit(lease, end)
    serve(cache, np.arange(12))
    serve(cache, np.append(100 + np.arange(8), 7))
    with cache.acquire(Key(100 + np.arange(8), namespace="a tenant")):
        pass
    stats = cache.stats()
    [never_saved, elsewhere] = stats.miss_details
    assert never_saved[0] == "never_saved" and elsewhere == ("other_namespace", "")
    exported = [
        labels for name, labels in scraped(CacheCollector(cache.stats)) if name == "unified_tree_miss_detail_tokens_total"
    ]
    assert exported == [(("cause", "never_saved"), ("detail", never_saved[1]))]


def test_copies_are_exported_as_histograms() -> None:
    cache = with_host()
    samples = scraped(CacheCollector(cache.stats))
    for direction, count in (("backup", 3), ("load", 1)):
        way = ("direction", direction)
        assert samples["unified_tree_transfer_seconds_count", (way,)] == count
        assert samples["unified_tree_transfer_seconds_bucket", (way, ("le", "+Inf"))] == count
        assert 0 < samples["unified_tree_transfer_seconds_sum", (way,)] < 60
    cumulated = [count for (name, labels), count in samples.items() if name.endswith("_bucket") and way in labels]
    assert cumulated == sorted(cumulated) and len(cumulated) == 17
    cache.close()


def test_the_count_of_hits_never_falls() -> None:
    """A load that fails takes its tokens from `hit_tokens`, and Prometheus would take that for a restart."""
    tier = HostTier(page_counts={"full": 40}, engine=NullEngine(), load_cost=ALWAYS_LOAD)
    cache = PrefixCache([FULL], 2, {"full": 4}, host=tier)
    for prompt in (np.arange(8), 100 + np.arange(8)):
        serve(cache, prompt)
        cache.drain()
    collector = CacheCollector(cache.stats, aliases=["vllm"])
    scrapes = [scraped(collector)]
    lease = cache.acquire(Key(np.arange(9)))
    assert lease.is_loading and cache.stats().hit_tokens == 8
    scrapes.append(scraped(collector))
    cache.invalidate()
    cache.drain()
    assert lease.failure is not None and cache.stats().hit_tokens == 0
    assert cache.stats().misses["load_failed"] == 8
    scrapes.append(scraped(collector))
    cache.release(lease)
    for before, after in pairwise(scrapes):
        fallen = {
            name
            for name, count in after.items()
            if re.search("_(total|count|bucket)$", name[0]) and count < before.get(name, 0)
        }
        assert not fallen
    cache.close()


@pytest.mark.parametrize("engine", RECORDED)
def test_aliases_are_names_of_the_engine(engine: str) -> None:
    cache = with_host()
    plain, samples = (scraped(CacheCollector(cache.stats, {"rank": "0"}, aliases=given)) for given in ([], [engine]))
    added = {key: count for key, count in samples.items() if key not in plain}
    recorded = RECORDED[engine].counters
    assert {name for name, _ in added} == set(recorded)
    for name, labels in added:
        beside = {label for label, _ in labels if label != "rank"}
        assert ("rank", "0") in labels and beside == recorded[name] - {"is_streaming"}
        assert all(value in SOURCES[name] for label, value in labels if label in ("source", "cache_source"))
        assert all(value in SGLANG_POOLS.values() for label, value in labels if label == "pool")
    cache.close()


def test_hits_without_an_optional_component_are_told_by_it() -> None:
    cache = PrefixCache([FULL, OWN_DRAFT], 2, {"full": 10, "draft": 10})
    name, label = "unified_tree_hit_tokens_without_total", (("component", "draft"),)
    serve(cache, np.arange(9))
    assert scraped(CacheCollector(cache.stats))[name, label] == 0
    cache.device.free_evicted(cache.tree.evict({"draft": 1}))
    serve(cache, np.arange(9))
    assert cache.stats().hit_tokens == 8
    assert scraped(CacheCollector(cache.stats))[name, label] == 8
    assert name not in {sample for sample, _ in scraped(CacheCollector(with_host().stats))}


def test_aliases_say_where_tokens_came_from() -> None:
    cache = with_host()
    samples = scraped(CacheCollector(cache.stats, aliases=("vllm", "sglang", "vllm")))
    stats = cache.stats()
    assert (stats.prompt_tokens, stats.device_hit_tokens, stats.host_hit_tokens) == (45, 8, 8)
    assert samples["vllm:prefix_cache_queries_total", ()] == samples["sglang:prompt_tokens_total", ()] == 45
    assert samples["vllm:prefix_cache_hits_total", ()] == samples["vllm:external_prefix_cache_hits_total", ()] == 8
    assert samples["vllm:external_prefix_cache_queries_total", ()] == 45 - 8
    for name, label, store in (
        ("vllm:prompt_tokens_cached_by_source_total", "source", "external_unspecified"),
        ("sglang:cached_tokens_total", "cache_source", "storage"),
    ):
        assert [samples[name, ((label, tier),)] for tier in ("device", "host", store)] == [8, 8, 0]
    assert samples["sglang:load_back_tokens_total", (("pool", "kv"),)] == 8
    assert samples["sglang:hicache_backup_tokens_total", (("pool", "mamba"),)] == 3
    assert samples["sglang:load_back_bytes_total", ()] == stats.loaded.size_bytes
    assert samples["sglang:hicache_backup_tokens_total", (("pool", "kv"),)] == 24
    assert samples["sglang:evicted_tokens_total", ()] == 2 * stats.pools["full"].evicted_pages > 0
    cache.close()


def test_a_cache_alone_asks_nobody_outside() -> None:
    cache = PrefixCache([Component(name="packed", coverage=Path()), swa(3)], 2)
    serve(cache, np.arange(8))
    samples = scraped(CacheCollector(cache.stats, aliases=["vllm", "sglang"]))
    assert samples["vllm:external_prefix_cache_queries_total", ()] == 0
    assert ("sglang:evicted_tokens_total", ()) not in samples, "it has no full KV"
    assert samples["sglang:load_back_tokens_total", (("pool", "swa"),)] == 0


@pytest.mark.parametrize("aliases", ["vllm", ["lmcache"]])
def test_aliases_are_of_engines_that_are_known(aliases: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="a list of engines out of vllm, sglang"):
        CacheCollector(PrefixCache([FULL], 2).stats, aliases=aliases)
