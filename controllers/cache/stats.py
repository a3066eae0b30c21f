"""Statistics of a running cache: snapshots (`...Stats`) and the counters they are read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unified_tree import build
from unified_tree.controllers.counters.cache_counters import CacheTotals, totals_of
from unified_tree.controllers.counters.latency import LatencyStats
from unified_tree.controllers.counters.transfer_counters import TransferCounters
from unified_tree.controllers.pages.shared_tier_pages import SharedTierPages
from unified_tree.controllers.pages.tier_pages import total_pages
from unified_tree.misses.miss_cause import MissCause
from unified_tree.nodes.effect import EffectKind
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.controllers.cache.group_stats import SharingStats, TenantStats
    from unified_tree.controllers.cache.resources import CacheResources
    from unified_tree.controllers.counters.observers import LiveCurve
    from unified_tree.controllers.pages.tier_pages import TierPages
    from unified_tree.controllers.storage_tier.storage_tier_stats import StorageTierStats
    from unified_tree.memory.ages import AgeCounter
    from unified_tree.memory.ghosts import Ghosts
    from unified_tree.state.tree_state import TreeState
    from unified_tree.tree import UnifiedTree


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeStats:
    """Ages of values, as a histogram.

    Attributes:
        counts: how many, by bucket of `unified_tree.memory.ages.BOUNDS_S`: each is below its bound; the last ones are beyond
            all bounds.
        total_s: their sum.
    """

    counts: tuple[int, ...]
    total_s: float

    @classmethod
    def of(cls, ages: AgeCounter) -> AgeStats:
        """A snapshot. Cost: O(buckets)."""
        return cls(counts=tuple(ages.counts), total_s=ages.total_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAgeStats:
    """The ages of one pool's values, in number of values: one for a node's run of pages, or a state.

    A pool is too small if values are evicted younger (`idle`) than the gaps after which others are still hit (`reuse_gap`):
    what goes might have been hit, had it stayed. A gap longer than values live cannot be hit; it is a miss with the cause
    `evicted`.

    Attributes:
        reuse_gap: for each match, how long what it used had not been used. Of a path that is its deepest node: a prefix that
            prompts only pass through counts no use. Of a window one value counts for all.
        idle: for each victim, how long it had not been used; `lifetime`: how long ago it was made.
    """

    reuse_gap: AgeStats
    idle: AgeStats
    lifetime: AgeStats


def age_stats(state: TreeState, pools: Mapping[Tier, Iterable[str]]) -> Mapping[tuple[str, str], PoolAgeStats]:
    """The ages of these pools, by component and tier; empty if the tree remembers no evictions. Cost: O(pools)."""
    if state.ages is None:
        return {}
    stats = {}
    for tier, names in pools.items():
        for name in names:
            ages = state.ages.of(state.layout.index[name], tier)
            stats[name, tier.name.lower()] = PoolAgeStats(
                reuse_gap=AgeStats.of(ages.reuse_gap), idle=AgeStats.of(ages.idle), lifetime=AgeStats.of(ages.lifetime)
            )
    return stats


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """One device pool, in pages. `used` = `tree` + `leased`; `protected` and `stranded` are parts of `tree`. Targets of open
    loads count as leased.

    Attributes:
        total: pages in the pool, None where it has no limit.
        evictable: those of the tree that no lock holds; with `total` - `used` free ones what `allocate` could give.
        page_tokens: tokens a page; a state counts as one.
        victims: values evicted because this pool was short; `evicted_pages` its pages that evictions freed, whichever pool was
            short.
    """

    total: int | None
    used: int
    tree: int
    leased: int
    evictable: int
    protected: int
    stranded: int
    page_bytes: int
    page_tokens: int
    victims: int
    evicted_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPoolStats:
    """One host pool, in pages.

    Attributes:
        total: pages in the pool, None where it has no limit.
        used: not free: in the tree, or the target of a backup under way.
        tree: of these in the tree; `protected`: of these locked; `copied`: of these also on device.
        victims: values evicted because this pool was short.
        unread_pages: pages that came here and left before anything of their value was loaded back.
    """

    total: int | None
    used: int
    tree: int
    protected: int
    copied: int
    page_bytes: int
    victims: int
    unread_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStats:
    """The eviction policy.

    Attributes:
        name: by which it was given; its class, where a factory was.
        figures: what it tells of itself (`EvictionPolicy.figures`). `density`: `evicts_as_lru` (1 while it does),
            `order_changes` (how often that changed), `turns` it has learned from, and of the tokens that came lately
            (`recent_tokens`) how many more were hit than `lru` would have (`lead_tokens`).
        failures: how often a policy of the user's own failed, in all pools; `last_failure`: why, the last time in the first
            pool where it did.
    """

    name: str
    figures: Mapping[str, float]
    failures: int
    last_failure: str | None

    @classmethod
    def of(cls, tree: UnifiedTree) -> PolicyStats:
        """A snapshot. Cost: O(pools)."""
        figures, pools = tree.state.policy.figures(), [*tree.state.pools(Tier.DEVICE), *tree.state.pools(Tier.HOST)]
        last = [pool.last_policy_failure for pool in pools if pool.last_policy_failure is not None]
        failures = sum(pool.policy_failures for pool in pools)
        return cls(name=tree.policy_name, figures=figures, failures=failures, last_failure=last[0] if last else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStats:
    """A budget that the pools of a tier share, in blocks.

    Attributes:
        total: blocks in all.
        used: not free; `pool_blocks` the same by component; `pool_page_blocks` what a page of each takes.
        evictable: those of the tree that no lock holds; with `total` - `used` what `allocate` could give.
        block_bytes: bytes of a block.
    """

    total: int
    used: int
    pool_blocks: Mapping[str, int]
    pool_page_blocks: Mapping[str, int]
    evictable: int
    block_bytes: int

    @classmethod
    def of(cls, pages: TierPages) -> BudgetStats | None:
        """A snapshot of a tier; None where its pools share nothing. Cost: O(components)."""
        if not isinstance(pages, SharedTierPages):
            return None
        budget = pages.blocks.budget
        return cls(
            total=budget.block_count,
            used=pages.blocks.used,
            pool_blocks={name: pages.allocators[name].used_pages * count for name, count in budget.page_blocks.items()},
            pool_page_blocks=budget.page_blocks,
            evictable=pages.shared.evictable_blocks,
            block_bytes=budget.block_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStats:
    """Copies of one direction, completed.

    Attributes:
        count: transfers; `pages` and `size_bytes` summed over all components, `component_pages` pages by component.
        latency: from the decision to copy until the copy took effect; so it includes the wait for the step's `poll`.
    """

    count: int
    pages: int
    size_bytes: int
    component_pages: Mapping[str, int]
    latency: LatencyStats

    @classmethod
    def of(cls, counters: TransferCounters) -> TransferStats:
        """What was counted so far. Cost: O(components)."""
        return cls(
            count=counters.count,
            pages=counters.pages,
            size_bytes=counters.size_bytes,
            component_pages=dict(counters.component_pages),
            latency=counters.latency.snapshot(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MissMemoryStats:
    """The memory of what was evicted, by which the causes of misses are found.

    Attributes:
        size_bytes: what it takes, about, for the prefixes that it has whole.
        remembered: evicted prefixes with all their tokens; `faded`: those known only to have been there.
        forgotten: prefixes that it had no room for any more. What they would have explained is a miss of cause `unknown` or
            `never_seen`.
    """

    size_bytes: int
    remembered: int
    faded: int
    forgotten: int

    @classmethod
    def of(cls, ghosts: Ghosts) -> MissMemoryStats:
        """A snapshot. Cost: O(1)."""
        return cls(
            size_bytes=ghosts.size_bytes,
            remembered=ghosts.clear.count,
            faded=ghosts.faded.count,
            forgotten=ghosts.forgotten,
        )


@dataclass(slots=True, kw_only=True)
class CacheStats(CacheTotals):
    """A snapshot of a cache: the totals of `CacheTotals` since it was made, and its state.

    Attributes:
        device_hit_tokens: of the `hit_tokens` those found on device.
        hit_tokens_without: of those when they were found, the ones of requests that lacked a component's state, or some of it,
            by optional component, such as a draft's KV.
        misses: the other prompt tokens, by the label of their `MissCause`: all causes, and they sum to `prompt_tokens` less
            `hit_tokens` and `arriving_tokens`. Empty if the tree remembers no evictions.
        evicted_misses: of these the evicted ones, by component and tier of the pool that was short, for all pools;
            `miss_details` of all misses those with a detail, by cause and detail.
        evicted_short_by: the evicted ones by component and tier likewise, and by the bit length of how many pages more, at
            most, would have kept them. `evicted_beneficiaries`: those of them that went to make room for another namespace, by
            that namespace; of the first 256 such namespaces.
        miss_memory: of what was evicted; None if the tree remembers no evictions.
        load_wait_s: how long callers waited for layers of loads.
        backed_up, loaded: completed copies.
        drops: operations that were dropped or failed, by reason.
        sessions: how many are open.
        hints: those that have ended, by verb and outcome; see `Hints`.
        policy: the eviction policy.
        ticks: of the tree's clock; see `TreeView.now`.
        pools: device pools by component; `host_pools` likewise, empty without a host tier.
        budget: the budget that the device pools share, None where each has a page count of its own. A pool's `total` is what it
            has and what it could have of free blocks, so it changes, and the totals do not add up. `host_budget` likewise.
        storage: statistics of the store, None without one.
        ages: of what is used and of what is evicted, by component and tier ("device" or "host"). Empty if the tree remembers no
            evictions (`TreeSettings.ghost_bytes` of 0). No part of equality, for they are times.
        sizes: what pools of other sizes would hit; None without `LiveSizes.watch`. No part of equality: it is of a sample.
        tenants: of groups of namespaces, by name, those that are reported; empty without tenants.
        sharing: what namespaces share; None if none do.
        is_compiled: whether the hot modules run compiled.
    """

    device_hit_tokens: int
    hit_tokens_without: Mapping[str, int]
    misses: Mapping[str, int]
    evicted_misses: Mapping[tuple[str, str], int]
    miss_details: Mapping[tuple[str, str], int]
    evicted_short_by: Mapping[tuple[str, str], Sequence[int]]
    evicted_beneficiaries: Mapping[str, int]
    miss_memory: MissMemoryStats | None
    nodes: int
    leases: int
    load_wait_s: float
    backed_up: TransferStats
    loaded: TransferStats
    drops: Mapping[str, int]
    sessions: int
    hints: Mapping[tuple[str, str], int]
    policy: PolicyStats
    ticks: int
    pools: Mapping[str, PoolStats]
    host_pools: Mapping[str, HostPoolStats]
    storage: StorageTierStats | None
    budget: BudgetStats | None = None
    host_budget: BudgetStats | None = None
    ages: Mapping[tuple[str, str], PoolAgeStats] = field(default_factory=dict, compare=False)
    sizes: LiveCurve | None = field(default=None, compare=False)
    tenants: Mapping[str, TenantStats] = field(default_factory=dict)
    sharing: SharingStats | None = None
    is_compiled: bool = build.is_compiled

    @classmethod
    def of(cls, cache: CacheResources, leases: int) -> CacheStats:
        """A snapshot of a cache with so many leases. Cost: O(components)."""
        counters, tree, controller, ledger = cache.counters, cache.tree, cache.controller, cache.ledger
        names, ghosts = [component.name for component in tree.components], tree.state.ghosts
        pools = {}
        for name, allocator in cache.device.allocators.items():
            pool = tree.pool(name)
            pools[name] = PoolStats(
                total=total_pages(allocator),
                used=allocator.used_pages,
                tree=pool.used_pages,
                leased=allocator.used_pages - pool.used_pages,
                evictable=pool.evictable_pages,
                protected=pool.protected_pages,
                stranded=pool.stranded_pages,
                page_bytes=pool.component.page_bytes,
                page_tokens=1 if pool.component.coverage.is_exact else cache.layout.page_size,
                victims=counters.victims.get((Tier.DEVICE, name), 0),
                evicted_pages=counters.evicted_device_pages.get(name, 0),
            )
        host_pools = {}
        for name, allocator in controller.host.allocators.items() if controller is not None else ():
            pool = tree.pool(name, Tier.HOST)
            host_pools[name] = HostPoolStats(
                total=total_pages(allocator),
                used=allocator.used_pages,
                tree=pool.used_pages,
                protected=pool.protected_pages,
                copied=pool.copied_pages,
                page_bytes=pool.component.page_bytes,
                victims=counters.victims.get((Tier.HOST, name), 0),
                unread_pages=pool.unread_pages,
            )
        tiers: dict[Tier, Iterable[str]] = {Tier.DEVICE: pools, Tier.HOST: host_pools}
        evicted = {
            (name, tier.name.lower()): ledger.evicted.get((names.index(name), tier), 0)
            for tier, of_tier in tiers.items()
            for name in of_tier
        }
        return cls(
            **{name: getattr(counters, name) for name in TOTALS},
            device_hit_tokens=counters.hit_tokens - counters.load_hit_tokens,
            hit_tokens_without={c.name: counters.hit_tokens_without.get(c.name, 0) for c in cache.layout.optional},
            misses={cause.label: ledger.tokens[cause] for cause in MissCause} if ledger.is_on else {},
            evicted_misses=evicted if ledger.is_on else {},
            miss_details={(cause.label, detail): count for (cause, detail), count in ledger.details.items()},
            evicted_short_by={(names[i], tier.name.lower()): tuple(sizes) for (i, tier), sizes in ledger.short_by.items()},
            evicted_beneficiaries=dict(ledger.beneficiaries),
            miss_memory=None if ghosts is None else MissMemoryStats.of(ghosts),
            nodes=tree.node_count,
            leases=leases,
            load_wait_s=counters.load_wait_ns / 1e9,
            backed_up=TransferStats.of(counters.transfers[EffectKind.BACKUP]),
            loaded=TransferStats.of(counters.transfers[EffectKind.LOAD]),
            drops=dict(counters.drops),
            sessions=len(cache.sessions),
            hints=dict(counters.hints),
            policy=PolicyStats.of(tree),
            ticks=tree.state.clock,
            pools=pools,
            host_pools=host_pools,
            budget=BudgetStats.of(cache.device),
            host_budget=None if controller is None else BudgetStats.of(controller.host),
            storage=cache.storage.stats() if cache.storage is not None else None,
            ages=age_stats(tree.state, tiers),
            sizes=counters.observers.curve(),
            tenants=cache.tenants.stats(),
            sharing=cache.sharing.stats(),
        )


TOTALS = totals_of(CacheTotals)
"""The counters that CacheStats shows as they are, and what they count."""
