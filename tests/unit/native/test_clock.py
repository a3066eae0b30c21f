"""The clock that a tree has by default."""

from __future__ import annotations

import time

import numpy as np
from waiting import wait_until

from unified_tree import Component, Key, Path, Point, UnifiedTree
from unified_tree.controllers import PrefixCache
from unified_tree.native.chosen import coarse_monotonic_s

BEHIND_S = 1.0
"""A tick is 1 to 10 ms; a machine whose processors were taken away counts it late."""


def test_the_coarse_clock_never_goes_back_and_is_hardly_behind() -> None:
    last_s = coarse_monotonic_s()
    for _ in range(1_000):
        before_s, shown_s, after_s = time.monotonic(), coarse_monotonic_s(), time.monotonic()
        assert before_s - BEHIND_S <= shown_s <= after_s
        assert shown_s >= last_s
        last_s = shown_s


def test_the_coarse_clock_goes_on() -> None:
    begun_s = coarse_monotonic_s()
    wait_until(lambda: coarse_monotonic_s() > begun_s, "it stands still")


def test_a_clock_of_ones_own_is_taken_as_it_is() -> None:
    tree = UnifiedTree([Component(name="full", coverage=Path())], 2, time_s=time.perf_counter)
    assert tree.state.ghosts is not None
    assert tree.state.ghosts.time_s is time.perf_counter


def test_one_call_reads_the_clock_at_most_once_where_it_publishes_nothing() -> None:
    readings = 0

    def counted() -> float:
        nonlocal readings
        readings += 1
        return float(readings)

    components = [Component(name="full", coverage=Path()), Component(name="state", coverage=Point())]
    cache = PrefixCache(components, 2, {"full": 8, "state": 3}, policy="lru", time_s=counted)
    for first in range(0, 40, 10):
        before = readings
        lease = cache.acquire(Key(range(first, first + 9)))
        assert readings <= before + 1
        before = readings
        cache.allocate(lease, 9)
        assert readings <= before + 1, "both pools are short"
        cache.commit(lease, np.arange(first, first + 9), dict(lease.save_pages))
        cache.release(lease)
    before = readings
    cache.evict({"state": 1})
    cache.evict({"full": 1})
    assert readings == before + 2
    assert cache.stats().evictions > 2
