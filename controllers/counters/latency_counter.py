"""Counting latencies; see LatencyStats for what is counted."""

from __future__ import annotations

from typing import Final

from unified_tree.controllers.counters.latency import BOUNDS_S, LatencyStats

BOUNDS: Final = list(BOUNDS_S)
"""Looked up once."""


class LatencyCounter:
    """Counts latencies. Not thread-safe.

    >>> latency = LatencyCounter()
    >>> latency.add(0.02)
    >>> latency.snapshot().counts[BOUNDS_S.index(0.025)]
    1
    """

    __slots__ = ("_counts", "_longest_s", "_total_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total_s = 0.0
        self._longest_s = 0.0

    def add(self, took_s: float) -> None:
        """Count one that took so long. Cost: below a microsecond."""
        bucket = 0
        for bound in BOUNDS:
            if took_s <= bound:
                break
            bucket += 1
        self._counts[bucket] += 1
        self._total_s += took_s
        self._longest_s = max(self._longest_s, took_s)

    def snapshot(self) -> LatencyStats:
        """All so far. Cost: O(buckets)."""
        return LatencyStats(counts=tuple(self._counts), total_s=self._total_s, longest_s=self._longest_s)
