"""Latencies are counted in the first bucket whose bound is not below them."""

from __future__ import annotations

from bisect import bisect_left

from unified_tree.controllers.counters.latency import BOUNDS_S
from unified_tree.controllers.counters.latency_counter import LatencyCounter


def test_each_latency_falls_into_the_bucket_of_its_bound() -> None:
    samples = [0.0, 1e9, *BOUNDS_S, *(bound * 0.999 for bound in BOUNDS_S), *(bound * 1.001 for bound in BOUNDS_S)]
    counter = LatencyCounter()
    expected = [0] * (len(BOUNDS_S) + 1)
    for sample in samples:
        counter.add(sample)
        expected[bisect_left(BOUNDS_S, sample)] += 1
    found = counter.snapshot()
    assert list(found.counts) == expected
    assert found.longest_s == 1e9
