"""Figures over time, in a bounded number of points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_POINTS = 1200
MAX_BINS = 150


class Timeline:
    """Totals at points in time. When they are too many, every other one is dropped, so all of the time stays in view.

    Args:
        shape: of the totals.
    """

    def __init__(self, *shape: int) -> None:
        self._at_s = np.zeros(MAX_POINTS + 1)
        self._totals = np.zeros((MAX_POINTS + 1, *shape), np.int64)
        self._count = 0
        self._every = 1
        self._seen = 0

    def add(self, at_s: float, totals: NDArray[np.int64]) -> None:
        """Add the totals at a time. The last point is always that of the last call."""
        if self._count and (self._seen - 1) % self._every:
            self._count -= 1
        self._seen += 1
        self._at_s[self._count], self._totals[self._count] = at_s, totals
        self._count += 1
        if self._count > MAX_POINTS:
            self._count = (self._count + 1) // 2
            self._at_s[: self._count] = self._at_s[::2].copy()
            self._totals[: self._count] = self._totals[::2].copy()
            self._every *= 2
            self._seen = 1

    def move(self, row: int, to: int) -> None:
        """Add one row of all totals to another, and begin the first anew."""
        self._totals[:, to] += self._totals[:, row]
        self._totals[:, row] = 0

    def shown(self, *rows: int) -> dict[str, Any]:
        """At most MAX_BINS equal parts of the time: their ends, and by how much each total grew a second in each.

        Args:
            rows: those of the totals to be added up, where these are a table.
        """
        if self._count < 2:
            return {"at_s": [], "rates": []}
        at_s, totals = self._at_s[: self._count], self._totals[: self._count]
        if totals.ndim > 2:
            totals = totals[:, list(rows)].sum(1)
        count = min(len(at_s) - 1, MAX_BINS)
        ends = np.linspace(at_s[0], at_s[-1], count + 1)
        width = max((at_s[-1] - at_s[0]) / count, 1e-9)
        rates = [np.diff(np.interp(ends, at_s, total)) / width for total in totals.T]
        return {"at_s": ends.tolist(), "rates": [[*np.round(rate, 2).tolist(), 0.0] for rate in rates]}
