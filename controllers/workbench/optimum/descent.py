"""Going down to prices whose bound is low.

The bound is a convex function of the prices, and what is left of each room at some prices is a sub-gradient of it. Steps
go from the best prices so far along an average of these, so that they do not swing from side to side where several pools are
short at a time (the volume algorithm of Barahona and Anbil, 2000). How far they go depends on what is surely possible.

Prices are constant over stretches of time, first few, then ever more. Where running requests take more room than at the moments
before and after, a price means most, so in between it is nothing.

Rejected: plain sub-gradients stop far above what ten times as many of these steps reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.optimum.feasible import feasible_depths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.optimum.demand import Demand
    from unified_tree.controllers.workbench.optimum.idle import Idle, Int64s
    from unified_tree.controllers.workbench.optimum.prices import Prices

    Floats = NDArray[np.float64]

STAGES = ((16, 50), (256, 256), (1 << 40, 2400))
"""Stretches of time, and steps, at most."""
QUICK_STAGES = STAGES[:2]
"""Seldom a percent above what all stages reach, in a sixth of their time."""
CLOSE = 0.001
"""A bound that is above what is surely possible by no more than this share is low enough."""
AVERAGED = 0.1
"""The share of the newest sub-gradient in the direction."""


class Descent:
    """The search for the lowest bound. Make it and call `go`, once.

    Args:
        most: another bound, which need not be gone below by much.

    Attributes:
        bound: the lowest one that was found.
        depths: a choice for which there is room, [moments].
    """

    def __init__(self, idle: Idle, demand: Demand, prices: Prices, most: float) -> None:
        self._idle = idle
        self._demand = demand
        self._prices = prices
        self._units = [max(1, int(room.max(initial=0))) for room in prices.rooms]
        self._counts = [_counts(room).astype(np.float64) for room in prices.rooms]
        self._summed = [np.zeros(idle.count + 1) for _ in prices.rooms]
        self.bound = min(most, prices.bound(self._summed)[0])
        self._lowest = np.inf
        self.depths = np.zeros(idle.count, np.int64)

    def go(self, stages: Sequence[tuple[int, int]] = STAGES) -> None:
        """Go down. Cost: O(steps x (candidates + moments)), and that of `feasible_depths`."""
        weights = [np.zeros(1) for _ in self._prices.rooms]  # a room over a stretch is worth so many tokens a moment
        if not weights or not self._prices.owner.size:
            return
        self._repair()
        for stretches, steps in stages:
            edges = np.linspace(0, self._idle.count, min(stretches, self._idle.count) + 1).astype(np.int64)
            count = edges.size - 1
            weights = [weight[np.minimum(np.arange(count) * weight.size // count, weight.size - 1)] for weight in weights]
            weights = self._descend(edges, weights, steps)
            self._repair()
            if self._is_close:
                break

    @property
    def _is_close(self) -> bool:
        return bool(self.bound <= (1 + CLOSE) * self.depths.sum())

    def _repair(self) -> None:
        depths = feasible_depths(self._idle, self._demand, self._prices, self._summed)
        if depths.sum() > self.depths.sum():
            self.depths = depths

    def _descend(self, edges: Int64s, weights: list[Floats], steps: int) -> list[Floats]:
        """The best weights after some steps down."""
        spans = np.diff(edges)
        rooms = [np.add.reduceat(room * is_, edges[:-1]) for room, is_ in zip(self._prices.rooms, self._counts, strict=True)]

        def slopes_at(weights: list[Floats]) -> tuple[float, list[Floats]]:
            rates = [np.repeat(weight / unit, spans) for weight, unit in zip(weights, self._units, strict=True)]
            summed = [np.append(0.0, np.cumsum(rate * is_)) for rate, is_ in zip(rates, self._counts, strict=True)]
            value, usages = self._prices.bound(summed)
            if value < self._lowest:
                self._lowest, self._summed = value, summed
                self.bound = min(self.bound, value)
            used = [np.add.reduceat(usage * is_, edges[:-1]) for usage, is_ in zip(usages, self._counts, strict=True)]
            return value, [(room - use) / unit for room, use, unit in zip(rooms, used, self._units, strict=True)]

        low = float(self.depths.sum())
        lowest, direction = slopes_at(weights)
        length, stale = 0.3, 0
        for _ in range(steps):
            norm = sum(float((part * part).sum()) for part in direction)
            if norm == 0 or lowest <= (1 + CLOSE) * low:
                break
            step = length * (lowest - low) / norm
            there = [np.maximum(0.0, weight - step * part) for weight, part in zip(weights, direction, strict=True)]
            value, slopes = slopes_at(there)
            direction = [(1 - AVERAGED) * old + AVERAGED * new for old, new in zip(direction, slopes, strict=True)]
            if value < lowest - 1e-9:
                lowest, weights, length, stale = value, there, min(1.5, 1.1 * length), 0
            else:
                stale += 1
                if stale == 5:
                    length, stale = 0.7 * length, 0
        return weights


def _counts(room: Int64s) -> NDArray[np.bool_]:
    """The moments at which there is no more room than just before and after."""
    padded = np.pad(room, 1, constant_values=np.iinfo(np.int64).max)
    return (room <= padded[:-2]) & (room <= padded[2:])


def whole_tokens(bound: float) -> int:
    """The whole tokens of a bound, rounding errors allowed for."""
    return int(bound + 1e-9 * bound + 1e-3)
