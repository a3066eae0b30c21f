"""Snapshots of the ages of what is used and of what is evicted; see `unified_tree.memory.ages`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.memory.ages import AgeCounter
    from unified_tree.state.tree_state import TreeState


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
