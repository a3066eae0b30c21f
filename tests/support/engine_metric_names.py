"""The counters that serving engines export, as far as a cache has aliases for them, recorded from their installed packages."""

from __future__ import annotations

from typing import NamedTuple


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
