"""What one row of the report says: a workload, served once under one policy."""

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
        hit_tokens: of the row's hit tokens, those loaded back.
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

    def record(self, row_hit_tokens: int, prompt_tokens: int) -> dict[str, Any]:
        """The figures as flat JSON values, hit rates by tier among them."""
        share = 1 / prompt_tokens if prompt_tokens else 0.0
        flat: dict[str, Any] = {
            "hit_rate_device": (row_hit_tokens - self.hit_tokens) * share,
            "hit_rate_host": self.hit_tokens * share,
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
class VerifiedFigures:
    """Bytes compared on hits, loads and at the ends of requests, and those of them that were not what was computed."""

    checked_bytes: int
    wrong_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Figures over the virtual clock, for plots.

    Attributes:
        time_s: when requests were admitted, in order.
        prompt_tokens, hit_tokens, host_hit_tokens: theirs; the last are part of the hit tokens.
        residency_s: when residency was looked at.
        resident_pages: by component, pages in use at those times.
    """

    time_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    hit_tokens: tuple[int, ...]
    host_hit_tokens: tuple[int, ...]
    residency_s: tuple[float, ...]
    resident_pages: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """The figures of one row. Token figures are of served requests, at their first admission.

    Attributes:
        policy: the row's name: an eviction policy, `unbounded`, `clairvoyant` or `ungated`.
        capacity: device budget as a multiple of the one asked for.
        requests, rejected, preempted: requests in all; of these rejected; how often a running one was put back.
        prompt_tokens, hit_tokens, recomputed_tokens: hit + recomputed = prompt.
        replayed_tokens: run again to rebuild a window, counted as recomputed.
        prefill_flops, prefill_flops_saved: of all prompts without a cache; of these not spent.
        lost_tokens: by component and cause, prompt tokens that its absence kept from being resumed.
        evictions: values evicted, tombstones among them; `tombstones`: evictions that left their node in place.
        pools: by component with device pages of its own.
        us_per_request_mean, us_per_request_p50, us_per_request_p99: microseconds inside the library, all calls of a request.
        virtual_s, wall_s: length of the replay on the virtual clock, and on the wall.
        host: None without a host tier.
        verified: None where pages held no bytes.
    """

    policy: str
    capacity: float
    requests: int
    rejected: int
    preempted: int
    prompt_tokens: int
    hit_tokens: int
    recomputed_tokens: int
    replayed_tokens: int
    prefill_flops: float
    prefill_flops_saved: float
    lost_tokens: dict[str, int]
    evictions: int
    tombstones: int
    pools: dict[str, PoolFigures]
    us_per_request_mean: float
    us_per_request_p50: float
    us_per_request_p99: float
    virtual_s: float
    wall_s: float
    timeline: Timeline
    host: HostFigures | None = None
    verified: VerifiedFigures | None = None

    @property
    def hit_rate(self) -> float:
        """Hit tokens per prompt token; 0 where there were none."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def host_hit_tokens(self) -> int:
        """Hit tokens that were loaded back."""
        return self.host.hit_tokens if self.host is not None else 0

    @property
    def flops_saved_share(self) -> float:
        """Share of the prefill FLOPs that was saved; 0 where there were none to save."""
        return self.prefill_flops_saved / self.prefill_flops if self.prefill_flops else 0.0

    def record(self) -> dict[str, Any]:
        """The row as flat JSON values, without its timeline. A figure by component is named `figure.component`."""
        flat: dict[str, Any] = {
            "policy": self.policy,
            "requests": self.requests,
            "rejected": self.rejected,
            "preempted": self.preempted,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "hit_tokens_device": self.hit_tokens - self.host_hit_tokens,
            "hit_tokens_host": self.host_hit_tokens,
            "hit_tokens_storage": 0,
            "hit_rate": self.hit_rate,
            "recomputed_tokens": self.recomputed_tokens,
            "replayed_tokens": self.replayed_tokens,
            "prefill_flops": self.prefill_flops,
            "prefill_flops_saved": self.prefill_flops_saved,
            "evictions": self.evictions,
            "tombstones": self.tombstones,
            "us_per_request_mean": self.us_per_request_mean,
            "us_per_request_p50": self.us_per_request_p50,
            "us_per_request_p99": self.us_per_request_p99,
            "virtual_s": self.virtual_s,
            "wall_s": self.wall_s,
        }
        for name, tokens in self.lost_tokens.items():
            flat[f"lost_tokens.{name}"] = tokens
        for name, pool in self.pools.items():
            flat[f"used_pages.{name}"] = pool.used_pages
            flat[f"peak_pages.{name}"] = pool.peak_pages
            flat[f"total_pages.{name}"] = pool.total_pages
        if self.host is not None:
            flat |= self.host.record(self.hit_tokens, self.prompt_tokens)
        if self.verified is not None:
            flat |= {"checked_bytes": self.verified.checked_bytes, "wrong_bytes": self.verified.wrong_bytes}
        return flat
