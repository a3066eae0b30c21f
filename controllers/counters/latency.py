"""Latencies, counted in buckets that never change, so that the histograms of many servers add up."""

from __future__ import annotations

from dataclasses import dataclass

BOUNDS_S: tuple[float, ...] = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
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
