"""Ages: how long after its last use a value is used again, and how long after it values are evicted.

The two distributions say whether a pool is too small: it is, if values are evicted younger than the gaps after which others are
still hit.

Values are stamped with the tree's logical clock. The times of its ticks are kept as on a logarithmic ruler: of every tick the
last `SLOTS`, of every second one as many, of every fourth, and so on. So the age of a stamp is one look-up, exact for what is
recent and else to about a fiftieth of the ticks since then, and the memory is bounded whatever the number of ticks.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.nodes.node import Value

DEVICE: Final = Tier.DEVICE
BOUNDS_S: Final = tuple([2**bucket / 1000 for bucket in range(31)])
"""The ages of each bucket are below its bound, in seconds: 1 ms, 2 ms, 4 ms, … about 12 days. One more bucket has the rest.
With a clock of coarse ticks, as the default one, those below a tick (1 to 10 ms) tell nothing apart."""
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
class AgeBucket(Bucket):
    """The ages from `from_ms` on, up to `below_ms`."""

    __slots__ = ("below_ms", "from_ms")

    def __init__(self, from_ms: float, below_ms: float) -> None:
        super().__init__()
        self.from_ms = from_ms
        self.below_ms = below_ms


@mypyc_attr(acyclic=True)
class Tick:
    """When a tick of the logical clock was; an object of its own, as a Bucket."""

    __slots__ = ("at_s",)

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s


@mypyc_attr(acyclic=True)
class AgeCounter:
    """Counts ages by bucket. An age is mostly in the same one as the age before.

    Attributes:
        total_s: the sum of all ages.

    >>> ages = AgeCounter()
    >>> ages.add(0.003)
    >>> ages.counts[BOUNDS_S.index(0.004)]
    1
    """

    __slots__ = ("_bucket", "_buckets", "total_s")

    def __init__(self) -> None:
        bounds_ms = [-inf, *(float(2**bucket) for bucket in range(LAST_BUCKET)), inf]
        self._buckets = [AgeBucket(*bounds) for bounds in pairwise(bounds_ms)]
        self._bucket = self._buckets[0]  # of the last age
        self.total_s = 0.0

    @property
    def counts(self) -> list[int]:
        """How many, by bucket of `BOUNDS_S`; the last one has those beyond all bounds."""
        return [bucket.count for bucket in self._buckets]

    def add(self, age_s: float) -> None:
        """Count one age, in seconds. Cost: O(1)."""
        age_ms = age_s * 1000
        bucket = self._bucket
        if age_ms < bucket.from_ms or age_ms >= bucket.below_ms:
            bucket = self._turn_to(age_ms)
        bucket.count += 1
        self.total_s += age_s

    def _turn_to(self, age_ms: float) -> AgeBucket:
        """The bucket of an age, which is not that of the age before."""
        bucket = self._buckets[min(bit_length(int(age_ms)), LAST_BUCKET)]
        self._bucket = bucket
        return bucket


def bit_length(number: i64) -> i64:
    """How many bits a number has, at most 63; 0 for a negative one.

    >>> bit_length(0), bit_length(1), bit_length(255), bit_length(256)
    (0, 1, 8, 9)
    """
    found: i64 = 0
    while number >= 256 and found < 56:
        number >>= 8
        found += 8
    while number > 0 and found < 63:
        number >>= 1
        found += 1
    return found


@mypyc_attr(acyclic=True)
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
        now_s: what its clock shows, in seconds.

    Attributes:
        now_s: what the clock showed at the last tick.
    """

    __slots__ = ("_clock", "_device", "_host", "_ticks", "now_s")

    def __init__(self, component_count: int, now_s: float) -> None:
        self.now_s = now_s
        self._clock: i64 = 0
        self._ticks = [Tick(self.now_s) for _ in range(SLOTS * LEVELS)]
        self._device = [PoolAges() for _ in range(component_count)]
        self._host = [PoolAges() for _ in range(component_count)]

    def of(self, component: int, tier: Tier) -> PoolAges:
        """Those of one pool, by the component's index."""
        return (self._device if tier is DEVICE else self._host)[component]

    def tick(self, clock: i64, now_s: float) -> None:
        """The logical clock has gone on by one. Cost: O(1), amortized."""
        self._clock = clock
        self.now_s = now_s
        first: i64 = 0
        while first < SLOTS * LEVELS:
            self._ticks[first + (clock & (SLOTS - 1))].at_s = now_s
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
        ages = (self._device if value.tier is DEVICE else self._host)[value.component]
        ages.reuse_gap.add(self.now_s - self.time_of(last))

    def evicted(self, value: Value, now_s: float) -> None:
        """A value is a victim."""
        ages = (self._device if value.tier is DEVICE else self._host)[value.component]
        created: i64 = value.created
        touched: i64 = value.touched
        age_s = now_s - self.time_of(created)
        ages.lifetime.add(age_s)
        if touched > created:  # else it was not used, or is to go first; see `UnifiedTree.supersede`
            age_s = now_s - self.time_of(touched)
        ages.idle.add(age_s)
