"""Latencies, counted in buckets that never change, so that the histograms of many servers add up."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The largest latency of each bucket, in seconds; one more bucket counts what took longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """How long something took, failed calls included.

    Attributes:
        counts: how many, by bucket of `BOUNDS_S`; the last took longer than all bounds.
        total_s: their sum; `longest_s` the longest of them.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    total_s: float = 0.0
    longest_s: float = 0.0

    @property
    def calls(self) -> int:
        """How many in all."""
        return sum(self.counts)


class LatencyCounter:
    """Counts latencies. Not thread-safe.

    >>> latency = LatencyCounter()
    >>> latency.add(0.02)
    >>> latency.snapshot().counts[BOUNDS_S.index(0.025)]
    1
    """

    __slots__ = ("_counts", "_longest_s", "_total_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0
        self._longest_s = 0.0

    def add(self, took_s: float) -> None:
        """Count one that took so long. Cost: below a microsecond."""
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1
        self._total_s += took_s
        self._longest_s = max(self._longest_s, took_s)

    def snapshot(self) -> LatencyStats:
        """All so far. Cost: O(buckets)."""
        return LatencyStats(counts=tuple(self._counts), total_s=self._total_s, longest_s=self._longest_s)
