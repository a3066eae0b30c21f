"""From what was counted during a replay to the figures of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.replay.linked_figures import LinkedFigures
from unified_tree.controllers.replay.row_result import RowResult, VerifiedFigures
from unified_tree.controllers.replay.tier_figures import HostFigures, PoolFigures, StoredFigures

if TYPE_CHECKING:
    from unified_tree.controllers.cache.stats import CacheStats
    from unified_tree.controllers.prefix_linker import LinkedPrefixes
    from unified_tree.controllers.replay.row import Plan, RowSpec
    from unified_tree.controllers.replay.row_storage import RowStorage
    from unified_tree.controllers.replay.row_tiers import RowTiers
    from unified_tree.controllers.replay.tally import Tally
    from unified_tree.controllers.replay.timed_cache import TimedCache
    from unified_tree.controllers.replay.verified_pages import VerifiedPages


def row_figures(
    plan: Plan,
    spec: RowSpec,
    tally: Tally,
    timed: TimedCache,
    pages: VerifiedPages | None,
    tiers: RowTiers,
    link: LinkedPrefixes | None,
    *,
    virtual_s: float,
    wall_s: float,
) -> RowResult:
    """The figures of a row that has been replayed."""
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
        rebuilt_tokens=int(tally.rebuilt_tokens[tally.served].sum()),
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
        host=_host_figures(tally, figures, timed.polled_ns),
        stored=_stored_figures(tally, figures, tiers.storage),
        linked=_linked_figures(tally, tiers, link),
        latency=None if plan.settings.prefill_flops_per_s is None else tally.latency.figures(tally.served, virtual_s),
        verified=None if pages is None else VerifiedFigures(checked_bytes=pages.checked_bytes, wrong_bytes=pages.wrong_bytes),
    )


def _host_figures(tally: Tally, figures: CacheStats, polled_ns: int) -> HostFigures | None:
    if not figures.host_pools:
        return None
    served = tally.served
    return HostFigures(
        hit_tokens=int(tally.host_hit_tokens[served].sum()),
        reachable_tokens=int(tally.reachable_tokens[served].sum()),
        path_tokens=int(tally.path_tokens[served].sum()),
        backups=figures.backed_up.count,
        backed_up_bytes=figures.backed_up.size_bytes,
        loads=figures.loaded.count,
        loaded_bytes=figures.loaded.size_bytes,
        load_wait_s=float(tally.load_wait_s[served].sum()),
        us_polling_per_request=polled_ns / 1e3 / max(1, int(served.sum())),
        drops=dict(sorted(figures.drops.items())),
        pools={
            name: PoolFigures(
                used_pages=pool.used, peak_pages=max(pool.used, tally.peak_host_pages[name]), total_pages=pool.total
            )
            for name, pool in figures.host_pools.items()
        },
    )


def _stored_figures(tally: Tally, figures: CacheStats, storage: RowStorage | None) -> StoredFigures | None:
    if figures.storage is None or storage is None:
        return None
    of_store, served = figures.storage, tally.served
    return StoredFigures(
        hit_tokens=int(tally.storage_hit_tokens[served].sum()),
        prefetches=of_store.prefetches,
        prefetched_tokens=of_store.prefetched_tokens,
        read_bytes=storage.meter.read_bytes,
        persisted_boundaries=of_store.persisted_boundaries,
        persisted_pages=of_store.persisted_pages,
        written_bytes=storage.meter.written_bytes,
        fetch_wait_s=float(tally.fetch_wait_s[served].sum()),
        waited=int((tally.fetch_wait_s[served] > 0).sum()),
        quarantined=sum(of_store.quarantined.values()),
        errors=of_store.errors,
    )


def _linked_figures(tally: Tally, tiers: RowTiers, link: LinkedPrefixes | None) -> LinkedFigures | None:
    if tiers.link is None or link is None:
        return None
    counts, served = link.counters, tally.served
    return LinkedFigures(
        hit_tokens=int(tally.linked_hit_tokens[served].sum()),
        lookups=counts.lookups,
        found_tokens=counts.found_tokens,
        retrieved_tokens=counts.retrieved_tokens,
        retrieved_bytes=tiers.link.linker.retrieved_bytes,
        stored_tokens=counts.stored_tokens,
        stored_bytes=tiers.link.linker.stored_bytes,
        fetch_wait_s=float(tally.fetch_wait_s[served].sum()),
        waited=int((tally.fetch_wait_s[served] > 0).sum()),
        late=counts.retrieves_late,
        no_room=counts.no_room,
        dropped=counts.stores_dropped,
        errors=counts.retrieves_failed + counts.stores_failed,
    )
