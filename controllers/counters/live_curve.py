"""Hit rates of a cache with pools of other sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSize:
    """The hit rate of one size.

    Attributes:
        path: the paths' pools, as a multiple of what they are; `other` likewise the pools of windows and states.
        hit_rate: hit tokens per prompt token of the sampled requests.
    """

    path: float
    other: float
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCurve:
    """Hit rates over the sizes of a running cache's pools, under LRU, since `LiveSizes.watch`.

    Attributes:
        requests, prompt_tokens: sampled so far.
        points: one for each pair of sizes; without windows and states `other` is 1 in all.
    """

    requests: int
    prompt_tokens: int
    points: tuple[LiveSize, ...]

    def hit_rate(self, path: float = 1.0, other: float = 1.0) -> float:
        """Of one of the points."""
        return next(point.hit_rate for point in self.points if (point.path, point.other) == (path, other))
