"""Hit rates over the size of one pool, or of one tier, and what one more GiB is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.sizing.surface import Rejected

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A size that was looked at.

    Attributes:
        size_bytes: of the pool or the tier, of one rank.
        hit_rate: hit tokens per prompt token, from any tier. A rejected request is a miss.
        points_per_gib: percentage points of hit rate that one more GiB is worth here.
        page_counts: the pages of the tier.
        rejected: requests that do not fit into the device's pools; `rejected_share` of all prompt tokens theirs.
    """

    size_bytes: int
    hit_rate: float
    points_per_gib: float
    rejected: int
    rejected_share: float
    page_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Hit rates by size, ascending.

    Attributes:
        tier: "device", "host" or "storage": what becomes larger; the other tiers stay.
        component: the pool that becomes larger while the tier's others stay; None for all of the tier.
        split: how the tier is divided at each size: "proposed" as `Composition.split_budget` does, or "best" as the workload
            would have it; None where one pool grows.
    """

    tier: str
    component: str | None
    split: str | None
    points: tuple[Point, ...]

    @classmethod
    def of(
        cls,
        sizes: Iterable[tuple[int, Mapping[str, int], float, Rejected]],
        *,
        tier: str,
        component: str | None = None,
        split: str | None = None,
    ) -> Curve:
        """From (bytes, page counts, hit rate, what the device rejects), by size ascending."""
        known = list(sizes)
        points = []
        for i, (size_bytes, page_counts, hit_rate, rejected) in enumerate(known):
            first, _, low, _ = known[max(0, i - 1)]
            last, _, high, _ = known[min(len(known) - 1, i + 1)]
            slope = 100 * (high - low) / ((last - first) / GIB) if last > first else 0.0
            points.append(
                Point(
                    size_bytes=size_bytes,
                    hit_rate=hit_rate,
                    points_per_gib=slope,
                    page_counts=page_counts,
                    rejected=rejected.requests,
                    rejected_share=rejected.token_share,
                )
            )
        return cls(tier=tier, component=component, split=split, points=tuple(points))

    def at(self, size_bytes: int) -> Point:
        """The point nearest to a size."""
        return min(self.points, key=lambda point: abs(point.size_bytes - size_bytes))
