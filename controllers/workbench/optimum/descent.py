"""Going down to prices whose bound is low.

The bound is a convex function of the prices, and what is left of each room at some prices is a sub-gradient of it. Steps
go from the best prices so far along an average of these, so that they do not swing from side to side where several pools are
short at a time (the volume algorithm of Barahona and Anbil, 2000). How far they go depends on what is surely possible.

Prices are constant over stretches of time, first few, then ever more. Where running requests take more room than at the moments
before and after, a price means most, so in between it is nothing.

Rejected: plain sub-gradients stop far above what ten times as many of these steps reach.

`feasible_depths` repairs the priced choice of depths, so that there is room for it. At the best prices found some moments are
asked for more than fits and others for less. So requests are let in one by one, those first that get most for what they pay,
each at the deepest place that still fits; what room is left goes to those who would go deeper.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.optimum.demand import Demand
    from unified_tree.controllers.workbench.optimum.idle import Idle, Int64s
    from unified_tree.controllers.workbench.optimum.prices import Prices

    Floats = NDArray[np.float64]
    Use = tuple[int, int, int, int]
    """Of a room, from a moment to before another one, so much."""


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


def feasible_depths(idle: Idle, demand: Demand, prices: Prices, summed: list[Floats]) -> Int64s:
    """Where each request can resume, so that all of it fits together, [moments]. Cost: O(candidates x moments) at worst.

    A request resumes at one of its candidates, or between two of them where the paths have room no further.
    """
    depths = np.zeros(idle.count, np.int64)
    if not prices.owner.size:
        return depths
    rooms = _Rooms(idle, demand, prices)
    worth, _ = prices.worth(summed)
    paid = np.maximum(prices.depth - worth, 1e-9)
    last = np.append(prices.group[1:], prices.owner.size)
    best = np.maximum.reduceat(worth, prices.group)
    groups = list(zip(prices.group.tolist(), last.tolist(), strict=True))
    chosen = [int(np.argmax(worth[begin:end])) + begin for begin, end in groups]
    depth, owners = prices.depth.tolist(), prices.owner[prices.group].tolist()
    order = sorted((k for k in range(len(chosen)) if best[k] > 0), key=lambda k: -depth[chosen[k]] / paid[chosen[k]])
    for k in order:
        depths[owners[k]] = rooms.take_deepest(owners[k], depth[groups[k][0] : chosen[k] + 1])
    for k in np.argsort(-best, kind="stable").tolist():
        before = int(depths[owners[k]])
        rooms.give(owners[k], before)
        depths[owners[k]] = rooms.take_deepest(owners[k], [*([before] if before else []), *_behind(depth, groups[k], before)])
    return depths


def _behind(depth: list[int], group: tuple[int, int], before: int) -> list[int]:
    """The candidates of a request that lie behind a depth."""
    begin, end = group
    return depth[bisect_right(depth, before, begin, end) : end]


class _Rooms:
    """What is left of each room, at each moment."""

    def __init__(self, idle: Idle, demand: Demand, prices: Prices) -> None:
        self._idle = idle
        self._demand = demand
        self._claims = prices.claims
        self._first = prices.first.tolist()
        self._saved = prices.saved
        self._free = [room.copy() for room in prices.rooms]
        self._step = max(demand.grid, idle.grid) if demand.states else idle.grid

    def take_deepest(self, owner: int, depths: Sequence[int]) -> int:
        """Take the room for a request at the deepest place that fits of these, ascending, or at a deeper one before the next;
        where it resumes, 0 for nowhere.
        """
        limit = self._limit(owner, depths[-1]) if depths else 0
        for at in range(len(depths) - 1, -1, -1):
            is_between = limit < depths[at] and (at == 0 or limit > depths[at - 1])
            for depth in (depths[at], limit if is_between else 0):
                if 0 < depth <= limit and self._take(self._uses(owner, depth)):
                    return depth
        return 0

    def give(self, owner: int, depth: int) -> None:
        """Give back what a request took at a depth."""
        for room, since, until, amount in self._uses(owner, depth) if depth else []:
            self._free[room][since:until] += amount

    def _limit(self, owner: int, depth: int) -> int:
        """How deep a request can resume up to some depth for all that the paths have room; see `Idle.fitting`."""
        if self._demand.path_tokens is None:
            return depth
        (room, weight), idle = self._claims[0], self._idle
        free, until, deepest = self._free[room], owner + 1, depth
        for run in range(self._first[owner], self._first[owner + 1]):
            begin, since = int(idle.begin[run]), int(idle.since[run])
            if begin >= deepest:
                break
            if since < until:
                deepest, until = min(deepest, begin + int(free[since:until].min()) // weight), since
            if deepest <= begin:
                deepest = begin
                break
        return depth if deepest >= depth else deepest // self._step * self._step

    def _take(self, uses: list[Use]) -> bool:
        """Take the room if there is; whether there was."""
        for at, (room, since, until, amount) in enumerate(uses):
            left = self._free[room][since:until]
            if left.min() < amount:
                for before in uses[:at]:
                    self._free[before[0]][before[1] : before[2]] += before[3]
                return False
            left -= amount
        return True

    def _uses(self, owner: int, depth: int) -> list[Use]:
        """What a request needs to resume at a depth."""
        idle, demand = self._idle, self._demand
        uses: list[Use] = []
        runs: list[Use] = []
        saved = owner + 1
        for at in range(self._first[owner], self._first[owner + 1]):
            begin = int(idle.begin[at])
            if begin >= depth:
                break
            since, saved = int(idle.since[at]), int(self._saved[at])
            if since <= owner:
                runs.append((since, owner + 1, begin, min(depth, int(idle.end[at]))))
        claims = iter(self._claims)
        if demand.path_tokens is not None:
            room, weight = next(claims)
            uses += [(room, s, u, weight * (end - begin)) for s, u, begin, end in runs]
        for window, _ in demand.windows:
            room, weight = next(claims)
            uses += [
                (room, s, u, weight * (end - max(begin, depth - window))) for s, u, begin, end in runs if end > depth - window
            ]
        for _ in demand.states:
            room, weight = next(claims)
            if saved <= owner:
                uses.append((room, saved, owner + 1, weight))
        return uses
