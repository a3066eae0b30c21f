"""Ages by component and tier: what is used, what is evicted; against a computation that keeps every time."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from unified_tree import Component, Key, Path, Point, Tier, TreeSettings, UnifiedTree
from unified_tree.controllers import PrefixCache
from unified_tree.declare.coverage import Trailing
from unified_tree.memory.ages import BOUNDS_S, LEVELS, SLOTS, AgeCounter, Ages


class FakeClock:
    """A clock that goes on when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def counted(*ages_s: float) -> list[int]:
    """The buckets of ages, naively."""
    counts = [0] * (len(BOUNDS_S) + 1)
    for age_s in ages_s:
        counts[sum(bound <= age_s for bound in BOUNDS_S)] += 1
    return counts


def test_ages_fall_below_the_bound_of_their_bucket() -> None:
    ages, random = AgeCounter(), Random(1)
    samples = [0.0, 0.0005, 0.001, 0.0011, 1.024, 2.0**30 / 1000, 1e9] + [10 ** random.uniform(-4, 7) for _ in range(200)]
    samples = [sample for sample in samples if all(abs(sample / bound - 1) > 1e-9 for bound in BOUNDS_S)] + [0.001]
    for sample in samples:
        ages.add(sample)
    assert ages.counts == counted(*samples)
    assert ages.total_s == pytest.approx(sum(samples))


def test_the_time_of_a_stamp_is_exact_for_recent_ones_and_else_nearly() -> None:
    clock, random = FakeClock(), Random(2)
    ages = Ages(1, clock.now_s)
    times = [clock.now_s]
    for stamp in range(1, 20_000):
        clock.now_s += random.random()
        times.append(clock.now_s)
        ages.tick(stamp, clock.now_s)
        for back in (0, 1, SLOTS - 1, random.randint(0, stamp)):
            if back <= stamp:
                told = ages.time_of(stamp - back)
                if back < SLOTS:
                    assert told == times[stamp - back]
                else:
                    slack = 1 + back // (SLOTS // 2 - 1)
                    assert times[max(0, stamp - back - slack)] <= told <= times[stamp - back]


def test_any_number_of_ticks_takes_the_same_memory() -> None:
    clock = FakeClock()
    ages = Ages(1, clock.now_s)
    stamp = 1 << 62
    for at in (1, 5, 1 << 20, 1 << 40, stamp):
        clock.now_s += 1
        ages.tick(at, clock.now_s)
    assert ages.time_of(stamp) == clock.now_s
    assert ages.time_of(0) <= clock.now_s
    assert len(ages._ticks) == SLOTS * LEVELS


def test_a_match_that_touches_samples_one_gap_a_component() -> None:
    clock = FakeClock()
    components = [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(4))]
    tree = UnifiedTree(components, 2, time_s=clock)
    key = Key(range(8))
    tree.insert(key, {"full": np.arange(4), "swa": np.arange(2)})
    ages = tree.state.ages
    assert ages is not None
    gaps = []
    for wait_s in (0.5, 3.0, 70.0):
        clock.now_s += wait_s
        tree.match_prefix(key, touch=False)
        tree.match_prefix(key)
        gaps.append(wait_s)
    clock.now_s += 9
    tree.match_prefix(Key(range(50, 58)))
    for i in range(2):
        assert ages.of(i, Tier.DEVICE).reuse_gap.counts == counted(*gaps)
        assert ages.of(i, Tier.HOST).reuse_gap.counts == counted()


def test_a_victim_samples_how_long_it_was_idle_and_how_long_it_lived() -> None:
    clock = FakeClock()
    tree = UnifiedTree([Component(name="full", coverage=Path())], 1, time_s=clock)
    tree.insert(Key([1, 2, 3]), {"full": np.arange(3)})
    clock.now_s += 100
    tree.match_prefix(Key([1, 2]))  # ends inside the node
    clock.now_s += 10
    tree.insert(Key([1, 2, 4]), {"full": np.array([7])})  # splits it: the upper half was used 10 s ago, the lower never
    clock.now_s += 5
    tree.evict({"full": 3})
    ages = tree.state.ages
    assert ages is not None
    device = ages.of(0, Tier.DEVICE)
    assert device.idle.counts == counted(115, 5, 5), "the last one inherits the recency of its children"
    assert device.lifetime.counts == counted(115, 5, 115)
    assert device.reuse_gap.counts == counted(100)


def test_a_window_that_was_superseded_was_idle_since_it_was_made() -> None:
    clock = FakeClock()
    components = [Component(name="full", coverage=Path()), Component(name="swa", coverage=Trailing(2))]
    tree = UnifiedTree(components, 1, time_s=clock)
    clock.now_s += 50
    first = tree.insert(Key([1, 2]), {"full": np.arange(2), "swa": np.arange(2)}).boundary
    clock.now_s += 3
    tree.supersede(first, "swa", 10)
    tree.evict({"swa": 1})
    ages = tree.state.ages
    assert ages is not None
    assert ages.of(1, Tier.DEVICE).idle.counts == counted(3)


@pytest.mark.parametrize("seed", range(6))
def test_ages_agree_with_what_the_stamps_say(seed: int) -> None:
    """The histograms of a random run, against the values' own stamps and the times of all ticks."""
    clock, random = FakeClock(), Random(seed)
    components = [Component(name="full", coverage=Path()), Component(name="state", coverage=Point())]
    tree = UnifiedTree(components, 1, page_counts={"full": 60}, time_s=clock)
    times = {0: clock.now_s}
    gaps: list[float] = []
    idle: list[float] = []
    lifetimes: list[float] = []
    for page in range(150):
        clock.now_s += 10 ** random.uniform(-4, 3)
        key = Key([random.randint(1, 2) for _ in range(random.randint(1, 10))])
        found = tree.match_prefix(key, touch=False)
        node = tree.state.nodes.get(found.known.node) if found.known.length else None
        value = None if node is None else node.device[0]
        if value is not None:
            gaps.append(clock.now_s - times[value.touched])
        tree.match_prefix(key)
        times.setdefault(tree.state.clock, clock.now_s)
        missing = len(key) - found.path_length
        while tree.pool("full").used_pages + missing > 60:
            victim = tree.state.device_pools[0].next_victim()
            assert victim is not None
            idle.append(clock.now_s - times[victim.touched])
            lifetimes.append(clock.now_s - times[victim.created])
            tree.evict({"full": 1})
            found = tree.match_prefix(key, touch=False)
            missing = len(key) - found.path_length
        free = [at for at in range(60) if not tree.state.device_pools[0].ledger.owns(at)]

        tree.insert(key, {"full": np.array(free[:missing], np.int64)}, {"state": {len(key): page}})
        times.setdefault(tree.state.clock, clock.now_s)
    ages = tree.state.ages
    assert ages is not None
    device = ages.of(0, Tier.DEVICE)
    assert device.reuse_gap.counts == counted(*gaps)
    assert device.idle.counts == counted(*idle)
    assert device.lifetime.counts == counted(*lifetimes)
    assert idle, "the run evicts"


def test_stats_have_the_ages_of_each_pool_where_evictions_are_remembered() -> None:
    tokens = np.arange(6)
    for ghost_bytes in (1 << 20, 0):
        settings = TreeSettings(ghost_bytes=ghost_bytes)
        cache = PrefixCache([Component(name="full", coverage=Path())], 2, {"full": 8}, settings=settings)
        for _ in range(2):
            with cache.acquire(Key(tokens)) as lease:
                cache.allocate(lease, 6)
                cache.commit(lease, tokens)
        cache.evict({"full": 1})
        ages = cache.stats().ages
        assert list(ages) == ([("full", "device")] if ghost_bytes else [])
        for pool in ages.values():
            assert [sum(each.counts) for each in (pool.reuse_gap, pool.idle, pool.lifetime)] == [1, 1, 1]
