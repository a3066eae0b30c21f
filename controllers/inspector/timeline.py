"""Figures over time, in a bounded number of points."""

from __future__ import annotations

from typing import Any

import numpy as np

MAX_POINTS = 1200
MAX_BINS = 150


class Timeline:
    """Totals at points in time. When they are too many, every other one is dropped, so all of the time stays in view."""

    def __init__(self) -> None:
        self._points: list[tuple[float, list[int]]] = []
        self._every = 1
        self._seen = 0

    def add(self, at_s: float, totals: list[int]) -> None:
        """Add the totals at a time. The last point is always that of the last call."""
        if self._points and (self._seen - 1) % self._every:
            self._points.pop()
        self._seen += 1
        self._points.append((at_s, totals))
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
            self._every *= 2
            self._seen = 1

    def shown(self) -> dict[str, Any]:
        """At most MAX_BINS equal parts of the time: their ends, and by how much each total grew a second in each."""
        if len(self._points) < 2:
            return {"at_s": [], "rates": []}
        at_s = np.array([point[0] for point in self._points])
        totals = np.array([point[1] for point in self._points], float).T
        count = min(len(at_s) - 1, MAX_BINS)
        ends = np.linspace(at_s[0], at_s[-1], count + 1)
        width = max((at_s[-1] - at_s[0]) / count, 1e-9)
        rates = [np.diff(np.interp(ends, at_s, total)) / width for total in totals]
        return {"at_s": ends.tolist(), "rates": [[*np.round(rate, 2).tolist(), 0.0] for rate in rates]}
