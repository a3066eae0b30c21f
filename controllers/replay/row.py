"""One row of the report: which cache it has, and running it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.component import Path
from unified_tree.controllers.prefix_cache import PrefixCache
from unified_tree.controllers.replay.clairvoyance import Clairvoyance
from unified_tree.controllers.replay.row_result import PoolFigures, RowResult
from unified_tree.controllers.replay.server import Server
from unified_tree.controllers.replay.tally import Tally
from unified_tree.controllers.replay.timed_cache import TimedCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.server_settings import ServerSettings
    from unified_tree.controllers.replay.workload import Workload


class RowKind(Enum):
    """What a row is for: a policy under test, or a reference.

    UNBOUNDED never evicts. CLAIRVOYANT evicts with knowledge of the requests to come. UNGATED has the same path pools, and
    windows and states that no match has to wait for, without bounds: what the path pools alone would allow.
    """

    POLICY = "policy"
    UNBOUNDED = "unbounded"
    CLAIRVOYANT = "clairvoyant"
    UNGATED = "ungated"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpec:
    """A row to run.

    Attributes:
        kind: what it is for.
        policy: the eviction policy by name; not read by CLAIRVOYANT.
        page_counts: device pages by component.
        capacity: device budget as a multiple of the one asked for; for the plot.
    """

    kind: RowKind
    policy: str
    page_counts: Mapping[str, int]
    capacity: float = 1.0

    @property
    def label(self) -> str:
        """The row's name in the report."""
        return self.policy if self.kind is RowKind.POLICY else self.kind.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all rows have in common: who asks for what, of which model, on how much memory (bytes a rank), how fast."""

    workload: Workload
    composition: Composition
    device_bytes: int
    settings: ServerSettings


def run_row(plan: Plan, spec: RowSpec, progress: Callable[[], None] | None = None) -> RowResult:
    """Replay the plan's workload with the row's cache.

    Raises ConfigurationError for a composition, page counts or a policy that no cache can be made of.
    """
    start_s = perf_counter()
    workload = plan.workload
    clairvoyance = Clairvoyance(workload, plan.composition) if spec.kind is RowKind.CLAIRVOYANT else None
    cache = make_cache(plan.composition, spec, clairvoyance)
    pools = [component.name for component in plan.composition.components if component.shares is None]
    tally = Tally(cache, workload, pools, clairvoyance, progress)
    server = Server(TimedCache(cache), workload, plan.settings, tally, most_tokens=_most_tokens(plan.composition, spec))
    server.run()
    return _result(plan, spec, tally, server.now_s, perf_counter() - start_s)


def make_cache(composition: Composition, spec: RowSpec, clairvoyance: Clairvoyance | None = None) -> PrefixCache:
    """The row's cache. `clairvoyance` is what a clairvoyant one evicts by."""
    page_counts: dict[str, int] = dict(spec.page_counts)
    if spec.kind is RowKind.UNBOUNDED:
        page_counts = {}
    elif spec.kind is RowKind.UNGATED:
        composition = composition.ungated()
        page_counts = {name: count for name, count in page_counts.items() if name in path_pools(composition)}
    cache = PrefixCache(
        composition.components,
        composition.page_size,
        page_counts or None,
        policy=clairvoyance or spec.policy,
    )
    if clairvoyance is not None:
        clairvoyance.attach(cache)
    return cache


def path_pools(composition: Composition) -> tuple[str, ...]:
    """The components with pages of their own that every token of a prefix needs."""
    return tuple(c.name for c in composition.components if c.shares is None and isinstance(c.coverage, Path))


def _most_tokens(composition: Composition, spec: RowSpec) -> int | None:
    """The longest sequence that the path pools hold; None if they have no end."""
    counts = [spec.page_counts[name] for name in path_pools(composition) if name in spec.page_counts]
    return None if spec.kind is RowKind.UNBOUNDED or not counts else min(counts) * composition.page_size


def _result(plan: Plan, spec: RowSpec, tally: Tally, virtual_s: float, wall_s: float) -> RowResult:
    prompts, hits = tally.prompt_tokens_served(), tally.hit_tokens[tally.served]
    flops = plan.composition.prefill_flops
    spent_us = tally.spent_ns[tally.served] / 1e3
    p50, p99 = np.percentile(spent_us, (50, 99)) if spent_us.size else (0.0, 0.0)
    figures = tally.cache.stats()
    return RowResult(
        policy=spec.label,
        capacity=spec.capacity,
        requests=len(plan.workload.requests),
        rejected=int(tally.served.size - tally.served.sum()),
        preempted=tally.preempted_count,
        prompt_tokens=int(prompts.sum()),
        hit_tokens=int(hits.sum()),
        recomputed_tokens=int(prompts.sum() - hits.sum()),
        replayed_tokens=int(tally.replayed_tokens[tally.served].sum()),
        prefill_flops=sum(flops(0, tokens) for tokens in prompts.tolist()),
        prefill_flops_saved=sum(flops(0, tokens) for tokens in hits.tolist()),
        lost_tokens=dict(sorted(tally.lost_tokens.items())),
        evictions=figures.evictions,
        tombstones=figures.tombstones,
        pools={
            name: PoolFigures(used_pages=pool.used, peak_pages=max(pool.used, tally.peak_pages[name]), total_pages=pool.total)
            for name, pool in figures.pools.items()
        },
        us_per_request_mean=float(spent_us.mean()) if spent_us.size else 0.0,
        us_per_request_p50=float(p50),
        us_per_request_p99=float(p99),
        virtual_s=virtual_s,
        wall_s=wall_s,
        timeline=tally.timeline(),
    )
