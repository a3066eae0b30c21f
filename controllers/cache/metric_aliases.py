"""A cache's figures under the names that serving engines give theirs, so that a dashboard made for one of them shows them.

An alias means what the engine's metric means, as far as a cache can know it; what it cannot know, or counts otherwise, has no
alias. These differences remain. A lease is counted when it is acquired, and what it loads when that has landed; SGLang counts
both when the request has ended. vLLM leaves out requests that were preempted before; a cache does not know that of a lease. The
engines' own labels (`model_name`, `engine`, `tp_rank`, …) are the collector's `labels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from unified_tree.controllers.cache.stats import CacheStats

Samples: TypeAlias = "Mapping[tuple[str, ...], float]"
"""Values by label values."""

SGLANG_POOLS = {"full": "kv", "swa": "swa", "mamba": "mamba"}
"""SGLang's names of the pools, by component."""


class Alias(NamedTuple):
    """One counter of an engine.

    Attributes:
        name: the engine's, without `_total`.
        what: it counts.
        labels: beside the engine's own.
        samples: what it is of a cache.
    """

    name: str
    what: str
    labels: tuple[str, ...]
    samples: Callable[[CacheStats], Samples]


def _outside_device(stats: CacheStats) -> int:
    """Prompt tokens for which the host tier was asked: those that were not on device."""
    return stats.prompt_tokens - stats.device_hit_tokens if stats.host_pools else 0


def _by_source(stats: CacheStats, store: str) -> Samples:
    """Hit tokens by the tier that they came from; `store` is the name of what is behind host."""
    return {
        ("device",): stats.device_hit_tokens,
        ("host",): stats.host_hit_tokens - stats.storage_hit_tokens,
        (store,): stats.storage_hit_tokens,
    }


def _pool_tokens(stats: CacheStats, pages: Mapping[str, int]) -> Samples:
    """Tokens of SGLang's pools; a state counts as one."""
    return {
        (pool,): pages.get(name, 0) * stats.pools[name].page_tokens
        for name, pool in SGLANG_POOLS.items()
        if name in stats.pools
    }


def _evicted(stats: CacheStats) -> Samples:
    """Tokens of full KV alone, as in SGLang."""
    full = stats.pools.get("full")
    return {} if full is None else {(): full.evicted_pages * full.page_tokens}


VLLM = (
    Alias("vllm:prefix_cache_queries", "prompt tokens asked for", (), lambda stats: {(): stats.prompt_tokens}),
    Alias("vllm:prefix_cache_hits", "prompt tokens found on device", (), lambda stats: {(): stats.device_hit_tokens}),
    Alias(
        "vllm:external_prefix_cache_queries",
        "prompt tokens that were not on device",
        (),
        lambda stats: {(): _outside_device(stats)},
    ),
    Alias("vllm:external_prefix_cache_hits", "prompt tokens loaded from host", (), lambda stats: {(): stats.host_hit_tokens}),
    Alias(
        "vllm:prompt_tokens_cached_by_source",
        "hit tokens by tier",
        ("source",),
        lambda stats: _by_source(stats, "external_unspecified"),
    ),
)
"""Of vLLM 0.32.0."""
SGLANG = (
    Alias("sglang:prompt_tokens", "prompt tokens", (), lambda stats: {(): stats.prompt_tokens}),
    Alias("sglang:cached_tokens", "hit tokens by tier", ("cache_source",), lambda stats: _by_source(stats, "storage")),
    Alias("sglang:evicted_tokens", "tokens of full KV evicted from device", (), _evicted),
    Alias(
        "sglang:load_back_tokens",
        "tokens loaded from host",
        ("pool",),
        lambda stats: _pool_tokens(stats, stats.loaded.component_pages),
    ),
    Alias("sglang:load_back_bytes", "bytes loaded from host", (), lambda stats: {(): stats.loaded.size_bytes}),
    Alias(
        "sglang:hicache_backup_tokens",
        "tokens copied to host",
        ("pool",),
        lambda stats: _pool_tokens(stats, stats.backed_up.component_pages),
    ),
    Alias("sglang:hicache_backup_bytes", "bytes copied to host", (), lambda stats: {(): stats.backed_up.size_bytes}),
)
"""Of SGLang 0.5.23."""
ALIASES: Mapping[str, tuple[Alias, ...]] = {"vllm": VLLM, "sglang": SGLANG}
"""The aliases by engine."""
