"""What one row of the report says: a workload, served once under one policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unified_tree.controllers.replay.latency import LatencyFigures
    from unified_tree.controllers.replay.linked_figures import LinkedFigures
    from unified_tree.controllers.replay.tier_figures import HostFigures, PoolFigures, StoredFigures


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
        policy: the row's name: an eviction policy, `unbounded`, `clairvoyant` or `path-only`.
        capacity: device budget as a multiple of the one asked for.
        requests, rejected, preempted: requests in all; of these rejected; how often a running one was put back.
        prompt_tokens, hit_tokens, recomputed_tokens: hit + recomputed = prompt.
        rebuilt_tokens: run again to rebuild a window, counted as recomputed.
        prefill_flops, prefill_flops_saved: of all prompts without a cache; of these not spent.
        lost_tokens: by component and cause, prompt tokens that its absence kept from being resumed.
        evictions: values evicted, tombstones among them; `tombstones`: evictions that left their node in place.
        pools: by component with device pages of its own.
        us_per_request_mean, us_per_request_p50, us_per_request_p99: microseconds inside the library, all calls of a request.
        virtual_s, wall_s: length of the replay on the virtual clock, and on the wall.
        host: None without a host tier; `stored`: None without a store behind it; `linked`: None without a linker.
        latency: None where no hardware was stated to model it from.
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
    rebuilt_tokens: int
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
    stored: StoredFigures | None = None
    linked: LinkedFigures | None = None
    latency: LatencyFigures | None = None
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
    def storage_hit_tokens(self) -> int:
        """Those of `host_hit_tokens` that a store had."""
        return self.stored.hit_tokens if self.stored is not None else 0

    @property
    def linked_hit_tokens(self) -> int:
        """Hit tokens that a linker brought to the device for the very request."""
        return self.linked.hit_tokens if self.linked is not None else 0

    @property
    def device_hit_tokens(self) -> int:
        """Hit tokens that were on the device."""
        return self.hit_tokens - self.host_hit_tokens - self.linked_hit_tokens

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
            "hit_tokens_device": self.device_hit_tokens,
            "hit_tokens_host": self.host_hit_tokens - self.storage_hit_tokens,
            "hit_tokens_storage": self.storage_hit_tokens + self.linked_hit_tokens,
            "hit_rate": self.hit_rate,
            "recomputed_tokens": self.recomputed_tokens,
            "rebuilt_tokens": self.rebuilt_tokens,
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
            flat |= self.host.record(self.hit_tokens, self.prompt_tokens, self.storage_hit_tokens)
        if self.stored is not None:
            flat |= self.stored.record(self.prompt_tokens)
        if self.linked is not None:
            flat |= self.linked.record(self.device_hit_tokens, self.prompt_tokens)
        if self.latency is not None:
            flat |= self.latency.record()
        if self.verified is not None:
            flat |= {"checked_bytes": self.verified.checked_bytes, "wrong_bytes": self.verified.wrong_bytes}
        return flat
