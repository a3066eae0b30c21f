"""What one row of the report is made of: a workload, served once under one policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.cache.stats import CacheStats
    from unified_tree.controllers.doctor import Figures
    from unified_tree.controllers.prefix_linker.prefix_linker import LinkCounters

    Requests: TypeAlias = NDArray[np.void]

LATENCY_PARTS = ("fetch", "queue", "load", "prefill")
"""From the arrival to the first token: until the store has answered, until there is a place, until what the host has is on
device, and until the rest is computed, behind what others have to compute."""
REQUEST = np.dtype(
    [
        *((f"{name}tokens", np.int64) for name in ("prompt_", "hit_", "host_hit_", "storage_hit_", "linked_hit_")),
        ("rebuilt_tokens", np.int64),
        ("miss_tokens", np.int64, (len(MissCause),)),
        *((name, np.float64) for name in ("admitted_s", "load_wait_s", "fetch_wait_s")),
        ("spent_ns", np.int64),
        ("latency_parts_s", np.float64, (len(LATENCY_PARTS),)),
        ("is_served", np.bool_),
        ("turn", np.int64),
        *((name, np.int64) for name in ("admission", "prompt_done", "done")),
    ]
)
"""One request of a row. Tokens are those of its first admission.

- `hit_tokens` were resumed: of these `host_hit_tokens` were loaded back, `storage_hit_tokens` of those had been prefetched for
  this very request, and `linked_hit_tokens` a linker brought to the device for it. `rebuilt_tokens` are no hits.
- `miss_tokens` were not resumed, by the code of their cause.
- `turn` counts the requests of a chain from one; it is 0 for a request without a chain, of which nobody knows.
- `admission` numbers the admissions, -1 for none; `prompt_done` and `done` are how many there had been when the request had run
  beyond its prompt for good, and when it ended.
- Waits are in seconds of the virtual clock, `spent_ns` are real nanoseconds inside the library.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Pages in use over the virtual clock, by component with device pages of its own."""

    time_s: tuple[float, ...]
    pages: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTraffic:
    """What a store or linker moved, in bytes of true page sizes, on one rank."""

    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStats:
    """Bytes compared on hits, loads and at the ends of requests, and those of them that were not what was computed."""

    checked_bytes: int
    wrong_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """All that is known of one row; the report's columns are derived from it (see `columns`).

    Attributes:
        policy: the row's name: an eviction policy, `unbounded` or `clairvoyant`; of the path-only twin of one `path-only ` and
            that name; of one whose pools share memory `shared ` and that name.
        is_path_only: whether it is such a twin, in which windows and states never limit a hit and take no room.
        capacity: device budget as a multiple of the one asked for, which is `device_bytes`.
        served: the requests that were not rejected, in arrival order, an array of REQUEST.
        turned_away: the rejected ones, of which only `prompt_tokens` counts, and as `admitted_s` when they were rejected.
        preempted: how often a running request was put back.
        miss_tokens: by label of MissCause, prompt tokens that were not resumed at the first admission; each has one cause.
            Those of rejected requests are `rejected`.
        figures: what `unified-tree doctor` reads.
        prefill_flops, prefill_flops_saved: of all served prompts without a cache; of these not spent. None for a model that
            does not state them.
        cache: what the cache counted; `peak_pages` and `peak_host_pages` the pages in use at most, by component.
        polled_ns: real nanoseconds of `poll`, which is no request's call.
        virtual_s, wall_s: length of the replay on the virtual clock, and on the wall.
        traffic: None without a store or linker; `link`: None without a linker.
        has_latency: whether hardware was stated to model latency from.
        verified: None where pages held no bytes.
        ceiling_tokens: hit tokens that no cache of any size could exceed.
        path_only_hit_rate: of its path-only twin; None without one, and outside a report.
        optimum_high_tokens: hit tokens that no eviction could exceed in the row's order of admissions; in a report in the
            order of any row of its pools. None where nothing bounds them.
        optimum_low_tokens: hit tokens that one of these rows reached; None outside a report.
    """

    policy: str
    is_path_only: bool
    capacity: float
    device_bytes: int
    served: Requests
    turned_away: Requests
    preempted: int
    miss_tokens: dict[str, int]
    figures: Figures
    prefill_flops: float | None
    prefill_flops_saved: float | None
    cache: CacheStats
    peak_pages: dict[str, int]
    peak_host_pages: dict[str, int]
    residency: Residency
    polled_ns: int
    virtual_s: float
    wall_s: float
    ceiling_tokens: int
    traffic: StoreTraffic | None = None
    link: LinkCounters | None = None
    has_latency: bool = False
    verified: VerifiedStats | None = None
    path_only_hit_rate: float | None = None
    optimum_high_tokens: int | None = None
    optimum_low_tokens: int | None = None

    def total(self, name: str) -> Any:
        """The sum of a field of REQUEST over the served requests."""
        return self.served[name].sum().item()

    @property
    def requests(self) -> int:
        """In all."""
        return len(self.served) + len(self.turned_away)

    @property
    def served_prompt_tokens(self) -> int:
        """Of the served requests."""
        return int(self.total("prompt_tokens"))

    @property
    def rejected_tokens(self) -> int:
        """Prompt tokens of the rejected requests."""
        return int(self.turned_away["prompt_tokens"].sum())

    @property
    def prompt_tokens(self) -> int:
        """Of all requests: a rejected one is a miss."""
        return self.served_prompt_tokens + self.rejected_tokens

    @property
    def hit_tokens(self) -> int:
        """Of the served requests' prompts, what was not computed again."""
        return int(self.total("hit_tokens"))

    @property
    def hit_rate(self) -> float:
        """Hit tokens per prompt token of all requests; 0 where there were none."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def served_hit_rate(self) -> float:
        """Hit tokens per prompt token of the served requests alone; 0 where there were none."""
        return self.hit_tokens / self.served_prompt_tokens if self.served_prompt_tokens else 0.0

    @property
    def rejected(self) -> int:
        """Requests that could not be served."""
        return len(self.turned_away)

    @property
    def has_host(self) -> bool:
        """Whether there was a host tier."""
        return bool(self.cache.host_pools)

    @property
    def flops_saved_share(self) -> float | None:
        """Share of the served prompts' prefill FLOPs that was saved; 0 where there were none to save, None where they are not
        stated.
        """
        if self.prefill_flops is None or self.prefill_flops_saved is None:
            return None
        return self.prefill_flops_saved / self.prefill_flops if self.prefill_flops else 0.0
