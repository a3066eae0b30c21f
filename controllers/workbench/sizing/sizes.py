"""What memory a workload needs: curves for every tier and pool, and the split that it would have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.workbench.runs.plan import GIB, fitting_split
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.workbench.runs.plan import Plan
    from unified_tree.controllers.workbench.sizing.needs import Needs
    from unified_tree.controllers.workbench.sizing.surface import Rejected, Surface
    from unified_tree.controllers.workbench.traces.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A size that was looked at.

    Attributes:
        size_bytes: of the pool or the tier, of one rank.
        hit_rate: hit tokens per prompt token, from any tier. A rejected request is a miss.
        points_per_gib: percentage points of hit rate that one more GiB adds, read off the curve.
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
        ceiling: float,
        component: str | None = None,
        split: str | None = None,
    ) -> Curve:
        """From (bytes, page counts, hit rate, what the device rejects), by size ascending.

        Args:
            ceiling: the hit rate without any bound, which no gain goes beyond.
        """
        known = list(sizes)
        line = [(size_bytes, hit_rate) for size_bytes, _, hit_rate, _ in known]
        points = tuple(
            Point(
                size_bytes=size_bytes,
                hit_rate=hit_rate,
                points_per_gib=100 * (min(_rate_at(line, size_bytes + GIB), max(ceiling, hit_rate)) - hit_rate),
                page_counts=page_counts,
                rejected=rejected.requests,
                rejected_share=rejected.token_share,
            )
            for size_bytes, page_counts, hit_rate, rejected in known
        )
        return cls(tier=tier, component=component, split=split, points=points)

    def at(self, size_bytes: int) -> Point:
        """The point nearest to a size."""
        return min(self.points, key=lambda point: abs(point.size_bytes - size_bytes))


def _rate_at(line: Sequence[tuple[int, float]], size_bytes: int) -> float:
    """The hit rate between two points of a line, or on beyond the last two."""
    ends = line[-2:]
    for pair in pairwise(line):
        if size_bytes <= pair[1][0]:
            ends = list(pair)
            break
    (first, low), (last, high) = ends[0], ends[-1]
    if last == first or (size_bytes > last and high < low):
        return high
    return low + (high - low) * (size_bytes - first) / (last - first)


STEPS_PER_DOUBLING = 2
DOUBLINGS = 2
"""The device's sizes go from a quarter to four times the one asked for."""
FAR_DOUBLINGS = 5
"""Those of host and store go on to 32 times."""
LEAST_PATH_SHARE = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a survey says.

    Attributes:
        present: the device asked for, with the given split or else the proposed one; `hit_rate` from all tiers together.
        split_name: of its split, "given" or "proposed".
        recommended: the best split of the same device, as on its curve.
        curves: of every tier, and of every pool of the device and of the host.
        ceiling: the hit rate without any bound.
        requests: of the workload.
        longest_tokens: prompt and answer of the longest one looked at.
    """

    present: Point
    split_name: str
    recommended: Point
    curves: tuple[Curve, ...]
    ceiling: float
    requests: int
    longest_tokens: int

    def curve(self, tier: str, split: str | None = None) -> Curve:
        """The curve of a whole tier; the first one if no split is named."""
        return next(c for c in self.curves if (c.tier, c.component) == (tier, None) and split in {None, c.split})


def sizes_bytes(present: int, doublings: tuple[int, int] = (DOUBLINGS, DOUBLINGS)) -> list[int]:
    """Sizes around one, in equal ratios."""
    down, up = (STEPS_PER_DOUBLING * count for count in doublings)
    return [round(present * 2 ** (i / STEPS_PER_DOUBLING)) for i in range(-down, up + 1)]


def path_sizes(plan: Plan, needs: Needs, page_counts: Mapping[str, int]) -> list[int | None]:
    """The sizes of paths to go over a workload with: close together where the device may lie, and wider beyond."""
    page_bytes = sum(needs.path_bytes.values())
    device = plan.device_bytes / page_bytes * needs.page_tokens
    largest = max(plan.device_bytes, 0 if plan.host is None else plan.host.size_bytes) / page_bytes * needs.page_tokens
    footprint = footprint_tokens(plan.workload)
    sizes: list[int | None] = [None, needs.path_tokens(page_counts)]
    tokens = device / 2**DOUBLINGS * (LEAST_PATH_SHARE if needs.is_gated else 1.0)
    while tokens < footprint and tokens < largest * 2 ** (FAR_DOUBLINGS + 1):
        sizes.append(int(tokens) // needs.page_tokens * needs.page_tokens or needs.page_tokens)
        tokens *= 2 ** (1 / STEPS_PER_DOUBLING) if tokens < device * 2**DOUBLINGS else 2
    return sizes


def footprint_tokens(workload: Workload) -> int:
    """Tokens that are different from each other, about: what a device without limit would keep."""
    block_tokens = max(request.block_tokens for request in workload.requests)
    own = sum(request.prompt_tokens + request.output_tokens - request.shared_tokens for request in workload.requests)
    return workload.block_count * block_tokens + own


def split_name(plan: Plan, page_counts: Mapping[str, int]) -> str:
    """The name of a split of the plan's device: "proposed" or, if it is another, "given"."""
    return "proposed" if page_counts == fitting_split(plan, plan.device_bytes) else "given"


def sizes_of(plan: Plan, surface: Surface, page_counts: Mapping[str, int], storage_bytes: int | None = None) -> Sizes:
    """All curves around what was asked for. Cost: O(sizes · shares · passes)."""
    return _Sizing(plan, surface, page_counts, storage_bytes).sizes()


class _Sizing:
    def __init__(self, plan: Plan, surface: Surface, page_counts: Mapping[str, int], storage_bytes: int | None) -> None:
        self._plan = plan
        self._surface = surface
        self._device = page_counts
        self._page_bytes = {**surface.needs.path_bytes, **{n: p.page_bytes for n, p in surface.needs.values.items()}}
        self._host = None if plan.host is None else plan.host.page_counts
        self._storage_bytes = storage_bytes
        self._ceiling = surface.hit_rate({})

    def sizes(self) -> Sizes:
        plan, surface = self._plan, self._surface
        curves = [
            self._device_curve("proposed"),
            self._device_curve("best"),
            *self._pool_curves("device", self._device),
            self._far_curve("host", None if plan.host is None else plan.host.size_bytes),
            *([] if self._host is None else self._pool_curves("host", self._host)),
            self._far_curve("storage", self._storage_bytes),
        ]
        name, best = split_name(plan, self._device), curves[1].at(plan.device_bytes)
        worth = curves[0].at(plan.device_bytes) if name == "proposed" else best
        return Sizes(
            present=self._point(self._device, worth.points_per_gib),
            split_name=name,
            recommended=self._point(best.page_counts, best.points_per_gib),
            curves=tuple(curves),
            ceiling=self._ceiling,
            requests=len(plan.workload.requests),
            longest_tokens=surface.rejected({}).longest_tokens,
        )

    def _point(self, counts: Mapping[str, int], worth: float) -> Point:
        rejected = self._surface.rejected(counts)
        return Point(
            size_bytes=self._bytes(counts),
            hit_rate=self._rate(counts),
            points_per_gib=worth,
            page_counts=counts,
            rejected=rejected.requests,
            rejected_share=rejected.token_share,
        )

    def _bytes(self, counts: Mapping[str, int]) -> int:
        return sum(count * self._page_bytes[name] for name, count in counts.items() if name in self._page_bytes)

    def _rate(self, device: Mapping[str, int], *behind: Mapping[str, int] | None) -> float:
        return self._surface.hit_rate(device, *(behind or (self._host,)))

    def _device_curve(self, split: str) -> Curve:
        plan = self._plan
        known: list[tuple[int, Mapping[str, int], float, Rejected]] = []
        for size in sizes_bytes(plan.device_bytes):
            counts: Mapping[str, int] | None = fitting_split(plan, size)
            if split == "best":
                given: list[Mapping[str, int]] = [] if counts is None else [counts]
                if size == plan.device_bytes:
                    given.insert(0, self._device)
                counts = best_split(self._surface, size, plan.settings.concurrency, given, self._host)
            if counts is not None:
                known.append((size, counts, self._rate(counts), self._surface.rejected(counts)))
        return Curve.of(known, tier="device", ceiling=self._ceiling, split=split)

    def _pool_curves(self, tier: str, counts: Mapping[str, int]) -> Iterator[Curve]:
        for name, page_bytes in self._page_bytes.items():
            known = []
            for size in sizes_bytes(counts[name] * page_bytes):
                changed = {**counts, name: size // page_bytes}
                rate = self._rate(changed) if tier == "device" else self._rate(self._device, changed)
                known.append((size, changed, rate, self._surface.rejected(changed if tier == "device" else self._device)))
            yield Curve.of(known, tier=tier, ceiling=self._ceiling, component=name)

    def _far_curve(self, tier: str, size_bytes: int | None) -> Curve:
        """A tier behind the others: around its size, or else from the device's on."""
        known: list[tuple[int, Mapping[str, int], float, Rejected]] = []
        rejected = self._surface.rejected(self._device)
        around = (
            (self._plan.device_bytes, (0, FAR_DOUBLINGS)) if size_bytes is None else (size_bytes, (DOUBLINGS, FAR_DOUBLINGS))
        )
        for size in sizes_bytes(*around):
            try:
                counts = propose_page_counts(self._plan.composition, host_bytes=size)
            except ConfigurationError:
                continue
            tiers = [counts] if tier == "host" else [self._host, counts]
            known.append((size, counts, self._rate(self._device, *tiers), rejected))
        return Curve.of(known, tier=tier, ceiling=self._ceiling, split="proposed")


SHARES = 96
FLAT = 1e-4
"""Splits whose hit rates are that close are as good as each other."""


def best_split(
    surface: Surface,
    size_bytes: int,
    running: int,
    given: Sequence[Mapping[str, int]] = (),
    host: Mapping[str, int] | None = None,
) -> dict[str, int] | None:
    """Pages by pool of a device.

    Of the splits that hit no less than any given one, a rejected request being a miss, these reject the fewest prompt tokens;
    of these it takes one that hits most, of all tiers together and then of the device alone. Of splits that are equally good it
    takes a given one, or else the middle share, farthest from what is worse on either side.

    Args:
        running: requests at once, which take pages of the same pools. Each split has room for them, or as much as a given one.
        given: splits of the same device that it is compared with.
        host: the pools behind the device; None for no host tier.

    Returns None where nothing is given and not even the running requests fit. Cost: O(SHARES · (passes + requests)).
    """
    shares = [i / SHARES for i in range(1, SHARES)] if surface.needs.is_gated else [1.0]
    by_share = (split_by_share(surface, size_bytes, share, running, given) for share in shares)
    splits = [_Split.of(surface, counts, host) for counts in (*given, *by_share) if counts is not None]
    if not splits:
        return None
    floor = max((split.hit_rate for split in splits[: len(given)]), default=0.0)
    splits = [split for split in splits if split.hit_rate >= floor]
    least = min(split.rejected for split in splits)
    splits = [split for split in splits if split.rejected == least]
    most = max(split.hit_rate for split in splits)
    splits = [split for split in splits if split.hit_rate >= most - FLAT]
    most = max(split.device_hit_rate for split in splits)
    good = [split.page_counts for split in splits if split.device_hit_rate >= most - FLAT]
    return dict(next((counts for counts in given if counts in good), good[len(good) // 2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A split that is compared; `rejected` is the share of prompt tokens."""

    page_counts: Mapping[str, int]
    hit_rate: float
    device_hit_rate: float
    rejected: float

    @classmethod
    def of(cls, surface: Surface, page_counts: Mapping[str, int], host: Mapping[str, int] | None) -> _Split:
        hit_rate = surface.hit_rate(page_counts, host)
        return cls(
            page_counts=page_counts,
            hit_rate=hit_rate,
            device_hit_rate=hit_rate if host is None else surface.hit_rate(page_counts),
            rejected=surface.rejected(page_counts).token_share,
        )


def split_by_share(
    surface: Surface, size_bytes: int, share: float, running: int, given: Sequence[Mapping[str, int]] = ()
) -> dict[str, int] | None:
    """Pages by pool with this share of the budget for paths; None where the others have too little for what is running, or less
    than the given splits have.
    """
    needs = surface.needs
    pages = int(share * size_bytes / sum(needs.path_bytes.values()))
    counts = dict.fromkeys(needs.path_bytes, pages)
    left = size_bytes - pages * sum(needs.path_bytes.values())
    held = {
        name: min([running * pool.running_pages + pool.step_pages, *(split[name] for split in given if name in split)])
        for name, pool in needs.values.items()
    }
    left -= sum(held[name] * pool.page_bytes for name, pool in needs.values.items())
    if left < 0 or pages == 0:
        return None
    value_bytes = sum(pool.pages * pool.page_bytes for pool in needs.values.values())
    for name, pool in needs.values.items():
        counts[name] = held[name] + left // value_bytes * pool.pages
    return counts
