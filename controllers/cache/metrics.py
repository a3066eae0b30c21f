"""A cache's metrics for Prometheus. Needs the `metrics` extra."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from unified_tree.controllers.cache.metric_aliases import ALIASES, Alias, Samples
from unified_tree.controllers.cache.stats import TOTALS
from unified_tree.controllers.counters.cache_counters import totals_of
from unified_tree.controllers.counters.latency import BOUNDS_S as LATENCY_BOUNDS_S
from unified_tree.inputs.printable import printable, repr_of
from unified_tree.memory.ages import BOUNDS_S as AGE_BOUNDS_S
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.cache.group_stats import SharingStats, TenantStats
    from unified_tree.controllers.cache.stats import (
        AgeStats,
        BudgetStats,
        CacheStats,
        HostPoolStats,
        MissMemoryStats,
        PolicyStats,
        PoolStats,
        TransferStats,
    )
    from unified_tree.controllers.counters.latency import LatencyStats
    from unified_tree.controllers.storage_tier import StorageTierStats

PREFIX = "unified_tree_"

AGES = {
    "reuse_gap": ("reuse_gap_seconds", "how long what a match used had not been used"),
    "idle": ("idle_before_eviction_seconds", "how long a victim had not been used"),
    "lifetime": ("lifetime_seconds", "how long ago a victim was made"),
}
"""Fields of PoolAgeStats, their names here, and what they are."""
SHORT_BY_BITS = tuple(range(0, 34, 2))
"""Buckets of `evicted_miss_short_by_pages`, by the bit length of their bound: 0, 3, 15, 63, … pages."""
MAX_NAMESPACE_LABELS = 32
OTHER_NAMESPACES = "(others)"
OWN_LABELS = frozenset(
    ("answer", "cache_source", "call", "cause", "component", "detail", "direction", "figure", "group", "le", "namespace")
) | {"outcome", "policy", "pool", "reason", "room", "source", "state", "tier", "verb"}
"""Labels that samples have besides the embedder's."""
POOL_PAGES = ("total", "used", "tree", "leased", "evictable", "protected", "stranded", "copied")


class CacheCollector:
    """Exports `PrefixCache.stats()` when it is scraped; register it with a prometheus_client registry.

    Args:
        stats: returns what is to be exported; see below.
        labels: put on every sample, such as the model and the rank.
        aliases: engines, of "vllm" and "sglang", under whose names some figures are exported once more; see `metric_aliases`.
            Not for a cache inside of that engine, which exports those names itself.

    A scrape must not read the cache from another thread. Pass a function that returns the CacheStats to export: a copy made by
    the cache's thread, or the bound method `cache.stats` if one thread does both.

    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> from unified_tree import Component, Path
    >>> from unified_tree.controllers import PrefixCache
    >>> registry = CollectorRegistry()
    >>> registry.register(CacheCollector(PrefixCache([Component(name="full", coverage=Path())], 16, {"full": 8}).stats))
    >>> b'unified_tree_pool_pages{component="full",state="total",tier="device"} 8.0' in generate_latest(registry)
    True
    """

    def __init__(
        self, stats: Callable[[], CacheStats], labels: Mapping[str, str] | None = None, aliases: Sequence[str] = ()
    ) -> None:
        if isinstance(aliases, str) or any(engine not in ALIASES for engine in aliases):
            raise ConfigurationError(f"aliases are a list of engines out of {', '.join(ALIASES)}, not {repr_of(aliases)}")
        self._stats = stats
        self._labels = _checked(labels or {})
        self._aliases: list[Alias] = [alias for engine in dict.fromkeys(aliases) for alias in ALIASES[engine]]

    def collect(self) -> Iterator[Metric]:
        """One scrape. Cost: O(components)."""
        stats = self._stats()
        # a counter must not fall, as `hit_tokens` does when a load fails
        grown = {"hit_tokens": stats.device_hit_tokens + stats.host_hit_tokens}
        for field, what in TOTALS.items():
            yield self._counter(field, what, {(): grown[field] if field in grown else getattr(stats, field)})
        yield self._counter("device_hit_tokens", "prompt tokens found on device", {(): stats.device_hit_tokens})
        if stats.hit_tokens_without:
            what = "prompt tokens found by requests that lacked state of an optional component"
            without: Samples = {(name,): count for name, count in stats.hit_tokens_without.items()}
            yield self._counter("hit_tokens_without", what, without, "component")
        if stats.miss_memory is not None:
            yield from self._misses(stats, stats.miss_memory)
        yield self._counter("load_wait_seconds", "time spent waiting at the gates of loads", {(): stats.load_wait_s})
        yield self.drops(stats.drops)
        ways: dict[str, TransferStats] = {"backup": stats.backed_up, "load": stats.loaded}
        for field, what in (("count", "transfers"), ("pages", "pages"), ("size_bytes", "bytes")):
            samples: Samples = {(way,): getattr(moved, field) for way, moved in ways.items()}
            name = {"count": "transfers", "pages": "transferred_pages", "size_bytes": "transferred_bytes"}[field]
            yield self._counter(name, f"{what} copied between device and host", samples, "direction")
        took = [((way,), moved.latency) for way, moved in ways.items()]
        what = "from the decision to copy until the copy took effect"
        yield self._histogram("transfer_seconds", what, LATENCY_BOUNDS_S, took, "direction")
        for field, (name, what) in AGES.items() if stats.ages else ():
            ages = [(pool, getattr(of_pool, field)) for pool, of_pool in stats.ages.items()]
            yield self._histogram(name, what, AGE_BOUNDS_S, ages, "component", "tier")
        yield from self.policy(stats.policy, stats.ticks)
        yield self._gauge("compiled", "1 if the hot modules run compiled", {(): int(stats.is_compiled)})
        yield self._gauge("nodes", "nodes in the tree", {(): stats.nodes})
        yield from self.sessions(stats.sessions, stats.hints)
        yield self._gauge("leases", "leases not released", {(): stats.leases})
        yield from self._pools({"device": stats.pools, "host": stats.host_pools})
        yield from self._budgets({"device": stats.budget, "host": stats.host_budget})
        if stats.tenants:
            yield from self.tenants(stats.tenants)
        if stats.sharing is not None:
            yield from self._sharing(stats.sharing)
        if stats.storage is not None:
            yield from self.storage(stats.storage)
        for alias in self._aliases:
            family = CounterMetricFamily(alias.name, alias.what, labels=[*self._labels, *alias.labels])
            yield self._filled(family, alias.samples(stats))

    def _misses(self, stats: CacheStats, memory: MissMemoryStats) -> Iterator[Metric]:
        by_cause: Samples = {(cause,): count for cause, count in stats.misses.items()}
        yield self._counter("miss_tokens", "prompt tokens that were computed, by cause", by_cause, "cause")
        what = "of those evicted, by the pool that was short"
        pools: Samples = {(component, tier): count for (component, tier), count in stats.evicted_misses.items()}
        yield self._counter("evicted_miss_tokens", what, pools, "component", "tier")
        yield self._short_by({pool: stats.evicted_short_by.get(pool, ()) for pool in stats.evicted_misses})
        what = "of those evicted, those that made room for another namespace, by that one"
        yield self._counter("evicted_miss_beneficiary_tokens", what, _labelled(stats.evicted_beneficiaries), "namespace")
        details: Samples = {
            (cause, detail): count
            for (cause, detail), count in stats.miss_details.items()
            if cause != MissCause.OTHER_NAMESPACE.label  # whose details are namespaces: too many to be labels
        }
        yield self._counter("miss_detail_tokens", "of the missed, those of which more is known", details, "cause", "detail")
        prefixes: Samples = {("whole",): memory.remembered, ("faded",): memory.faded}
        yield self._gauge("miss_memory_prefixes", "evicted prefixes that are remembered", prefixes, "state")
        yield self._gauge("miss_memory_bytes", "memory for the whole ones", {(): memory.size_bytes})
        yield self._counter("miss_memory_forgotten", "evicted prefixes that were forgotten", {(): memory.forgotten})

    def policy(self, policy: PolicyStats, ticks: int) -> Iterator[Metric]:
        """The families of the eviction policy, and of the clock by which it counts."""
        name = printable(policy.name)
        failures: Samples = {(name,): policy.failures}
        yield self._counter("policy_failures", "how often a custom eviction policy failed", failures, "policy")
        figures: Samples = {(name, figure): value for figure, value in policy.figures.items()}
        yield self._gauge("policy_figure", "what the eviction policy tells of itself", figures, "policy", "figure")
        yield self._counter("ticks", "the tree's clock: matches that hit, inserts, copies that landed", {(): ticks})

    def sessions(self, open_count: int, hints: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
        """The families of sessions and of hints, by verb and outcome."""
        yield self._gauge("sessions", "sessions that have not ended", {(): open_count})
        ended: Samples = {(verb, outcome): count for (verb, outcome), count in hints.items()}
        yield self._counter("hints", "hints that have ended, by what they asked for", ended, "verb", "outcome")

    def tenants(self, tenants: Mapping[str, TenantStats]) -> Iterator[Metric]:
        """The families of groups of namespaces, by name."""
        for field, what in (("requests", "requests"), ("prompt_tokens", "prompt tokens"), ("hit_tokens", "tokens hit")):
            samples: Samples = {(printable(name),): getattr(group, field) for name, group in tenants.items()}
            yield self._counter(f"tenant_{field}", f"{what}, by group of namespaces", samples, "group")
        ended: Samples = {
            (printable(name), verb, outcome): count
            for name, group in tenants.items()
            for (verb, outcome), count in group.hints.items()
        }
        what = "hints that have ended, by group of namespaces and by what they asked for"
        yield self._counter("tenant_hints", what, ended, "group", "verb", "outcome")
        held: dict[tuple[str, ...], float] = {}
        victims: dict[tuple[str, ...], float] = {}
        for name, group in tenants.items():
            for where, room in group.rooms.items():
                victims[printable(name), where] = room.victims
                held[printable(name), where, "used"], held[printable(name), where, "share"] = room.used, room.share
        what = "pages of a pool, or blocks of a budget, that a group of namespaces holds and may count on"
        yield self._gauge("tenant_units", what, held, "group", "room", "state")
        yield self._counter("tenant_victims", "values evicted, by whose they were", victims, "group", "room")

    def _sharing(self, stats: SharingStats) -> Iterator[Metric]:
        for field, what in (("common_tokens", "prompt tokens that were common"), ("common_hit_tokens", "those of them hit")):
            yield self._counter(field, f"{what}, of namespaces that share", {(): getattr(stats, field)})
        pages: Samples = {("common",): stats.common_pages, ("shown",): stats.shown_pages - stats.common_pages}
        yield self._gauge("remembered_pages", "pages of prompts whose tenants are remembered", pages, "state")

    def _short_by(self, pools: Mapping[tuple[str, str], Sequence[int]]) -> Metric:
        what = "of those evicted, by how many pages more, at most, would have kept them"
        labels = [*self._labels, "component", "tier"]
        family = HistogramMetricFamily(f"{PREFIX}evicted_miss_short_by_pages", what, labels=labels)
        for pool, tokens in pools.items():
            buckets = [(str(float((1 << bits) - 1)), sum(tokens[: bits + 1])) for bits in SHORT_BY_BITS]
            family.add_metric(self._values(pool), [*buckets, ("+Inf", sum(tokens))], None)
        return family

    def drops(self, counts: Mapping[str, int]) -> Metric:
        """Dropped operations, by reason."""
        samples: Samples = {(reason,): count for reason, count in counts.items()}
        return self._counter("drops", "what was not done or came to nothing", samples, "reason")

    def storage(self, figures: StorageTierStats) -> Iterator[Metric]:
        """The part of a scrape that is about a store."""
        for field, what in totals_of(type(figures)).items():
            yield self._counter(f"storage_{field}", what, {(): getattr(figures, field)})
        yield self._gauge("storage_prefetches_open", "prefetches that have not ended", {(): figures.prefetches_open})
        yield self._gauge("storage_prefetches_ended", "prefetches that nobody asked for yet", {(): figures.prefetches_ended})
        yield self._gauge("storage_boundaries_waiting", "boundaries that wait to be written", {(): figures.boundaries_waiting})
        yield self._gauge("storage_boundaries_to_retry", "boundaries that a fault kept out", {(): figures.boundaries_to_retry})
        yield self._gauge("storage_failed_pages", "pages listed and not given lately", {(): figures.failed_pages})
        yield self._gauge("storage_degraded", "1 while the store cannot be used", {(): int(figures.is_degraded)})
        asked: dict[tuple[str, ...], float] = {}
        pages: dict[tuple[str, ...], float] = {}
        for pool, counts in figures.pools.items():
            asked[pool, "asked"], asked[pool, "present"] = counts.queries, counts.present
            for call, outcomes in (("get", counts.gets), ("put", counts.puts)):
                pages.update({(pool, call, outcome.value): count for outcome, count in outcomes.items()})
        yield self._counter("storage_queries", "keys asked for, and of these present", asked, "pool", "answer")
        yield self._counter("storage_pages", "pages handed to the store's calls, by outcome", pages, "pool", "call", "outcome")
        faults: Samples = {(kind,): count for kind, count in figures.faults.items()}
        yield self._counter("storage_faults", "pages that faults of the store concern, by kind", faults, "kind")
        bad: Samples = {(pool,): figures.quarantined.get(pool, 0) for pool in figures.pools}
        yield self._counter("storage_quarantined", "pages that were not what had been put", bad, "pool")
        longest: Samples = {key: latency.longest_s for key, latency in figures.latencies.items()}
        yield self._histogram(
            "storage_call_seconds", "calls of the store", LATENCY_BOUNDS_S, figures.latencies.items(), "pool", "call"
        )
        yield self._gauge("storage_longest_call_seconds", "the longest of those calls", longest, "pool", "call")

    def _pools(self, tiers: Mapping[str, Mapping[str, PoolStats] | Mapping[str, HostPoolStats]]) -> Iterator[Metric]:
        pages: dict[tuple[str, ...], float] = {}
        victims: dict[tuple[str, ...], float] = {}
        evicted: dict[tuple[str, ...], float] = {}
        unread: dict[tuple[str, ...], float] = {}
        for tier, pools in tiers.items():
            for component, pool in pools.items():
                figures = asdict(pool)
                victims[tier, component] = figures["victims"]
                if "evicted_pages" in figures:
                    evicted[(component,)] = figures["evicted_pages"]
                if "unread_pages" in figures:
                    unread[(component,)] = figures["unread_pages"]
                for state in POOL_PAGES:
                    if figures.get(state) is not None:
                        pages[tier, component, state] = figures[state]
        yield self._gauge("pool_pages", "pages of a pool, by state", pages, "tier", "component", "state")
        yield self._counter("pool_victims", "values evicted because the pool was short", victims, "tier", "component")
        yield self._counter("evicted_pages", "device pages that evictions freed", evicted, "component")
        yield self._counter("host_unread_pages", "pages that left host memory and were never read there", unread, "component")

    def _budgets(self, tiers: Mapping[str, BudgetStats | None]) -> Iterator[Metric]:
        sizes: dict[tuple[str, ...], float] = {}
        of_pools: dict[tuple[str, ...], float] = {}
        for tier, budget in tiers.items():
            if budget is not None:
                for state in ("total", "used", "evictable"):
                    sizes[tier, state] = getattr(budget, state) * budget.block_bytes
                for component, blocks in budget.pool_blocks.items():
                    of_pools[tier, component] = blocks * budget.block_bytes
        if sizes:
            yield self._gauge("budget_bytes", "memory that the pools of a tier share, by state", sizes, "tier", "state")
            yield self._gauge("budget_pool_bytes", "what a pool has of it", of_pools, "tier", "component")

    def _counter(self, name: str, what: str, samples: Samples, *labels: str) -> Metric:
        family = CounterMetricFamily(PREFIX + name, what, labels=[*self._labels, *labels])
        return self._filled(family, samples)

    def _gauge(self, name: str, what: str, samples: Samples, *labels: str) -> Metric:
        return self._filled(GaugeMetricFamily(PREFIX + name, what, labels=[*self._labels, *labels]), samples)

    def _histogram(
        self,
        name: str,
        what: str,
        bounds_s: Sequence[float],
        counted: Iterable[tuple[tuple[str, ...], LatencyStats | AgeStats]],
        *labels: str,
    ) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, what, labels=[*self._labels, *labels])
        for values, figures in counted:
            counts = accumulate(figures.counts)
            buckets = [(str(bound), count) for bound, count in zip((*bounds_s, "+Inf"), counts, strict=True)]
            family.add_metric(self._values(values), buckets, figures.total_s)
        return family

    def _filled(
        self, family: CounterMetricFamily | GaugeMetricFamily, samples: Samples
    ) -> CounterMetricFamily | GaugeMetricFamily:
        shown: dict[tuple[str, ...], float] = {}
        for values, sample in samples.items():
            labels = tuple(self._values(values))
            shown[labels] = shown.get(labels, 0) + sample  # those that are shown alike are one
        for labels, sample in shown.items():
            family.add_metric(labels, sample)
        return family

    def _values(self, values: Iterable[str]) -> list[str]:
        """The values of all labels of a sample. An unprintable one would end every scrape from then on."""
        return [*self._labels.values(), *map(printable, values)]


def _checked(labels: Mapping[str, object]) -> dict[str, str]:
    """Labels of the embedder's own, which no scrape fails by. Raises ConfigurationError."""
    if not isinstance(labels, Mapping):
        raise ConfigurationError(f"labels must be a mapping from names to values, not {repr_of(labels)}")
    for name in labels:
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) or name.startswith("__"):
            raise ConfigurationError(f"a label's name must be letters, digits and underscores, not {repr_of(name)}")
        if name in OWN_LABELS:
            raise ConfigurationError(f"the label {name!r} is the collector's own: call yours otherwise")
    return {name: printable(str(value)) for name, value in labels.items()}


def _labelled(by_namespace: Mapping[str, int]) -> Samples:
    """The first MAX_NAMESPACE_LABELS namespaces, which stay the first, and all others in one."""
    samples: dict[tuple[str, ...], float] = {}
    for namespace, tokens in by_namespace.items():
        label = (namespace if len(samples) < MAX_NAMESPACE_LABELS else OTHER_NAMESPACES,)
        samples[label] = samples.get(label, 0) + tokens
    return samples
