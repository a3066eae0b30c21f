"""Figures over time, in a bounded number of points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.inputs.printable import printable
from unified_tree.misses.causes import LOAD_FAILED
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from unified_tree.controllers.counters.observers import ObservedRequest


MAX_NAMESPACES = 64
"""Between two tellings; the others are one."""
SERIES = 1 + len(MissCause)


class NamespaceTally:
    """Counts, by namespace, the hit tokens, and behind them the computed ones by cause."""

    def __init__(self) -> None:
        self._tokens: dict[str | None, list[int]] = {}

    def acquired(self, request: ObservedRequest, namespace: str) -> None:
        """Count a request. Cost: O(its misses)."""
        tokens = self._of(printable(namespace))
        tokens[0] += request.compute_from
        for miss in request.misses:
            tokens[1 + miss.code] += miss.end - miss.begin

    def load_failed(self, namespace: str, count: int) -> None:
        """So many tokens that were counted as hits are computed after all."""
        tokens = self._of(printable(namespace))
        tokens[0] -= count
        tokens[1 + LOAD_FAILED] += count

    def take(self) -> list[tuple[str | None, list[int]]]:
        """The counts since the last call, by namespace; an entry without a name sums up the rest."""
        told = sorted(self._tokens.items(), key=lambda entry: entry[0] is None)
        self._tokens = {}
        return told

    def _of(self, namespace: str) -> list[int]:
        name = namespace if namespace in self._tokens or len(self._tokens) < MAX_NAMESPACES else None
        return self._tokens.setdefault(name, [0] * SERIES)


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


KEPT = 32
"""Namespaces that are told apart."""
SHOWN = 8
"""Of these, those with most prompt tokens have a name on the page."""
LABELS = ["hit", *(cause.label for cause in MissCause)]


class NamespaceTimeline:
    """Prompt tokens by namespace over time.

    A new namespace takes the place of the one with fewest tokens if all places are taken; that one is one of the others from
    then on, with all of its past, so the sum over all is exact.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}  # row 0 is that of the others
        self._totals = np.zeros((1 + KEPT, SERIES), np.int64)
        self._timeline = Timeline(1 + KEPT, SERIES)

    def add(self, at_s: float, counted: Iterable[tuple[str | None, Sequence[int]]]) -> None:
        """Add what was counted up to a time, by namespace; None are others."""
        for namespace, tokens in counted:
            self._totals[0 if namespace is None else self._row(namespace)] += np.array(tokens, np.int64)
        self._timeline.add(at_s, self._totals)

    def _row(self, namespace: str) -> int:
        row = self._rows.get(namespace)
        if row is None:
            row = 1 + len(self._rows)
            if row > KEPT:
                smallest = min(self._rows, key=lambda name: int(self._totals[self._rows[name]].sum()))
                row = self._rows.pop(smallest)
                self._timeline.move(row, 0)
                self._totals[0] += self._totals[row]
                self._totals[row] = 0
            self._rows[namespace] = row
        return row

    def totals(self) -> list[tuple[str | None, list[int]]]:
        """All tokens so far by namespace, as in LABELS: of SHOWN at most, and behind them of all others, if any, as None."""
        named = [(name, self._totals[self._rows[name]].tolist()) for name in self._largest()]
        others = self._totals[self._others()].sum(0)
        return [*named, (None, others.tolist())] if others.any() else [*named]

    def of(self, namespace: str | None) -> dict[str, Any]:
        """Over time, for one namespace, or for the others."""
        rows = self._others() if namespace is None else [row for name, row in self._rows.items() if name == namespace]
        return {"labels": LABELS, **self._timeline.shown(*rows)}

    def computed(self) -> dict[str, Any]:
        """Over time, the tokens that were computed, whatever the cause, by namespace; None are the others."""
        shown: dict[str, Any] = {"labels": [], "at_s": [], "rates": []}
        for namespace, _ in self.totals():
            of = self.of(namespace)
            if of["rates"]:
                shown["at_s"] = of["at_s"]
                shown["labels"].append(namespace)
                shown["rates"].append(np.sum(of["rates"][1:], axis=0).round(2).tolist())
        return shown

    def _largest(self) -> list[str]:
        return sorted(self._rows, key=lambda name: (-int(self._totals[self._rows[name]].sum()), name))[:SHOWN]

    def _others(self) -> list[int]:
        named = {self._rows[name] for name in self._largest()}
        return [row for row in range(1 + KEPT) if row not in named]
