"""Figures of a running cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """One device pool, in pages. `used` = `tree` + `leased`; `protected` and `stranded` are parts of `tree`.

    Attributes:
        total: pages in the pool, None where it has no limit.
        victims: values evicted because this pool was short.
    """

    total: int | None
    used: int
    tree: int
    leased: int
    protected: int
    stranded: int
    page_bytes: int
    victims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Totals since the cache was made.

    Attributes:
        requests: leases handed out; `prompt_tokens` their lengths summed; `hit_tokens` of these not computed again;
            `replayed_tokens` cached but run again to rebuild windows.
        evictions: values evicted; `tombstones` of these whose node stayed; `deleted_nodes` nodes that left the tree.
        duplicate_pages: pages freed at commit because the tree had their tokens already.
        refused: calls that raised OutOfPagesError.
    """

    requests: int
    prompt_tokens: int
    hit_tokens: int
    replayed_tokens: int
    evictions: int
    tombstones: int
    deleted_nodes: int
    duplicate_pages: int
    refused: int
    nodes: int
    leases: int
    pools: Mapping[str, PoolStats]


@dataclass(slots=True)
class Counters:
    """What PrefixCache counts as it goes; see CacheStats."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    replayed_tokens: int = 0
    evictions: int = 0
    tombstones: int = 0
    deleted_nodes: int = 0
    duplicate_pages: int = 0
    refused: int = 0
    victims: dict[str, int] = field(default_factory=dict)
