"""Ages: how long after its last use a value is used again, and how long after it values are evicted.

The two distributions say whether a pool is too small: it is, if values are evicted younger than the gaps after which others are
still hit.

Values are stamped with the tree's logical clock. The times of its ticks are kept as on a logarithmic ruler: of every tick the
last `SLOTS`, of every second one as many, of every fourth, and so on. So the age of a stamp is one look-up, exact for what is
recent and else to about a fiftieth of the ticks since then, and the memory is bounded whatever the number of ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from unified_tree.node import Tier, Value

BOUNDS_S: Final = tuple([2**bucket / 1000 for bucket in range(31)])
"""The ages of each bucket are below its bound, in seconds: 1 ms, 2 ms, 4 ms, … about 12 days. One more bucket has the rest."""
LAST_BUCKET: Final = 31
SLOTS: Final = 128
LEVELS: Final = 32


@mypyc_attr(acyclic=True)
class Bucket:
    """One bucket's count; an object of its own, because compiled code counts in it without making numbers into objects."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: i64 = 0


@mypyc_attr(acyclic=True)
class Tick:
    """When a tick of the logical clock was; an object of its own, as a Bucket."""

    __slots__ = ("at_s",)

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s


class AgeCounter:
    """Counts ages by bucket.

    Attributes:
        total_s: the sum of all ages.

    >>> ages = AgeCounter()
    >>> ages.add(0.003)
    >>> ages.counts[BOUNDS_S.index(0.004)]
    1
    """

    __slots__ = ("_buckets", "total_s")

    def __init__(self) -> None:
        self._buckets = [Bucket() for _ in range(LAST_BUCKET + 1)]
        self.total_s = 0.0

    @property
    def counts(self) -> list[int]:
        """How many, by bucket of `BOUNDS_S`; the last one has those beyond all bounds."""
        return [bucket.count for bucket in self._buckets]

    def add(self, age_s: float) -> None:
        """Count one age, in seconds. Cost: O(1)."""
        self.add_to(bucket_of(age_s), age_s)

    def add_to(self, bucket: i64, age_s: float) -> None:
        """As `add`, where its bucket is known."""
        self._buckets[bucket].count += 1
        self.total_s += age_s


def bucket_of(age_s: float) -> i64:
    """Which bucket an age is counted in."""
    left: i64 = int(age_s * 1000)
    bucket: i64 = 0
    while left >= 256 and bucket < 24:
        left >>= 8
        bucket += 8
    while left > 0 and bucket < LAST_BUCKET:
        left >>= 1
        bucket += 1
    return bucket


class PoolAges:
    """The ages of one pool's values; one count a value, whatever its pages.

    Attributes:
        reuse_gap: since the last use, of what a match uses, or since it was made: one of a window's values for all.
        idle: the same of each victim when it is evicted.
        lifetime: since it was made, of each victim.
    """

    __slots__ = ("idle", "lifetime", "reuse_gap")

    def __init__(self) -> None:
        self.reuse_gap = AgeCounter()
        self.idle = AgeCounter()
        self.lifetime = AgeCounter()


@mypyc_attr(acyclic=True)
class Ages:
    """The ages of one tree's values.

    Args:
        component_count: how many components the tree has.
        time_s: its clock, in seconds.

    Attributes:
        now_s: when the last tick of the logical clock was.
    """

    __slots__ = ("_clock", "_device", "_host", "_ticks", "_time_s", "now_s")

    def __init__(self, component_count: int, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self.now_s = time_s()
        self._clock: i64 = 0
        self._ticks = [Tick(self.now_s) for _ in range(SLOTS * LEVELS)]
        self._device = [PoolAges() for _ in range(component_count)]
        self._host = [PoolAges() for _ in range(component_count)]

    def of(self, component: int, tier: Tier) -> PoolAges:
        """Those of one pool, by the component's index."""
        return (self._host if tier else self._device)[component]

    def tick(self, clock: i64) -> None:
        """The logical clock has gone on by one. Cost: O(1), amortized."""
        now = self.now_s = self._time_s()
        self._clock = clock
        first: i64 = 0
        while first < SLOTS * LEVELS:
            self._ticks[first + (clock & (SLOTS - 1))].at_s = now
            if clock & 1:
                break
            clock >>= 1
            first += SLOTS

    def time_of(self, stamp: i64) -> float:
        """When the logical clock showed a stamp, in seconds; for one long ago a little earlier. Cost: O(log age)."""
        clock = self._clock
        first: i64 = 0
        while clock - stamp >= SLOTS and first < SLOTS * (LEVELS - 1):
            clock >>= 1
            stamp >>= 1
            first += SLOTS
        return self._ticks[first + (stamp & (SLOTS - 1))].at_s

    def used(self, value: Value) -> None:
        """A match uses a value, and has not stamped it yet."""
        last: i64 = max(value.touched, value.created)
        ages = (self._host if value.tier else self._device)[value.component]
        ages.reuse_gap.add(self.now_s - self.time_of(last))

    def evicted(self, value: Value, now_s: float) -> None:
        """A value is a victim."""
        ages = (self._host if value.tier else self._device)[value.component]
        created: i64 = value.created
        touched: i64 = value.touched
        age_s = now_s - self.time_of(created)
        bucket = bucket_of(age_s)
        ages.lifetime.add_to(bucket, age_s)
        if touched > created:  # else it was not used, or is to go first; see `UnifiedTree.supersede`
            age_s = now_s - self.time_of(touched)
            bucket = bucket_of(age_s)
        ages.idle.add_to(bucket, age_s)
