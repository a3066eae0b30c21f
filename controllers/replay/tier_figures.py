"""What pools, the host tier and the store of one row did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """Pages of one component's pool on one tier: in use at the end, at most at any time, and in all (None: without end)."""

    used_pages: int
    peak_pages: int
    total_pages: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """What the host tier did in one row. Token figures as in RowResult; bytes are those of true page sizes, on one rank.

    Attributes:
        hit_tokens: of the row's hit tokens, those loaded back, whether or not they came from a store before.
        reachable_tokens: resumable over both tiers when requests were offered.
        path_tokens: that the paths covered then, over both tiers; what is reachable lacks windows or states to be all of it.
        backups, loads: copies completed, and their bytes: `backed_up_bytes`, `loaded_bytes`.
        load_wait_s: virtual seconds that requests had a place and waited for their load, summed.
        us_polling_per_request: microseconds of `poll`, which is nobody's call, a served request.
        drops: what was not done or came to nothing, by reason.
        pools: host pages by component.
    """

    hit_tokens: int
    reachable_tokens: int
    path_tokens: int
    backups: int
    backed_up_bytes: int
    loads: int
    loaded_bytes: int
    load_wait_s: float
    us_polling_per_request: float
    drops: dict[str, int]
    pools: dict[str, PoolFigures]

    def record(self, row_hit_tokens: int, prompt_tokens: int, storage_hit_tokens: int) -> dict[str, Any]:
        """The figures as flat JSON values, hit rates by tier among them."""
        share = 1 / prompt_tokens if prompt_tokens else 0.0
        flat: dict[str, Any] = {
            "hit_rate_device": (row_hit_tokens - self.hit_tokens) * share,
            "hit_rate_host": (self.hit_tokens - storage_hit_tokens) * share,
            "reachable_tokens": self.reachable_tokens,
            "path_tokens": self.path_tokens,
            "backups": self.backups,
            "backed_up_gib": self.backed_up_bytes / GIB,
            "loads": self.loads,
            "loaded_gib": self.loaded_bytes / GIB,
            "load_wait_s": self.load_wait_s,
            "us_polling_per_request": self.us_polling_per_request,
            "drops": sum(self.drops.values()),
        }
        for reason, count in self.drops.items():
            flat[f"drops.{reason}"] = count
        for name, pool in self.pools.items():
            flat[f"used_host_pages.{name}"] = pool.used_pages
            flat[f"peak_host_pages.{name}"] = pool.peak_pages
            flat[f"total_host_pages.{name}"] = pool.total_pages
        return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFigures:
    """What the store behind the host tier did in one row. Token figures as in RowResult; bytes are those of true page sizes.

    Attributes:
        hit_tokens: of the hit tokens loaded back from host, those that had been prefetched for the very request.
        prefetches: begun; `prefetched_tokens` by which they made prefixes on host longer, `read_bytes` all that they read.
        persisted_boundaries: written whole; `persisted_pages`, `written_bytes` what was written for them.
        fetch_wait_s: virtual seconds from arrival to the end of the wait for a prefetch, summed over the requests that
            `waited`.
        quarantined: pages that were not what had been put.
        errors: calls of the store that failed.
    """

    hit_tokens: int
    prefetches: int
    prefetched_tokens: int
    read_bytes: int
    persisted_boundaries: int
    persisted_pages: int
    written_bytes: int
    fetch_wait_s: float
    waited: int
    quarantined: int
    errors: int

    def record(self, prompt_tokens: int) -> dict[str, Any]:
        """The figures as flat JSON values."""
        return {
            "hit_rate_storage": self.hit_tokens / prompt_tokens if prompt_tokens else 0.0,
            "prefetches": self.prefetches,
            "prefetched_tokens": self.prefetched_tokens,
            "prefetched_gib": self.read_bytes / GIB,
            "persisted_boundaries": self.persisted_boundaries,
            "persisted_pages": self.persisted_pages,
            "persisted_gib": self.written_bytes / GIB,
            "fetch_wait_s": self.fetch_wait_s,
            "waited_for_storage": self.waited,
            "quarantined_pages": self.quarantined,
            "storage_errors": self.errors,
        }
