"""The clock that a tree has by default."""

from __future__ import annotations

import time

import numpy as np
import pytest

from unified_tree import Component, Key, Path, Point
from unified_tree.clock import IS_SAME, fastest, monotonic_s
from unified_tree.controllers import PrefixCache


@pytest.mark.skipif(not IS_SAME, reason="time.monotonic is another clock here")
def test_what_reads_the_clock_fast_shows_the_same_time_and_never_goes_back() -> None:
    for _ in range(1_000):
        shown = [time.monotonic(), monotonic_s(), time.monotonic(), monotonic_s()]
        assert shown == sorted(shown)


def test_a_clock_of_ones_own_is_taken_as_it_is() -> None:
    def mine() -> float:
        return 0.0

    assert fastest(mine) is mine
    assert fastest(time.perf_counter) is time.perf_counter


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
