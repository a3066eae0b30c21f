"""An upper bound for hybrids, by a price for room and time, and the way down to prices whose bound is low.

Let a pool's room cost something for each token and admission, whatever it is. A request may then resume wherever it likes, if
it pays for what it resumes from: each token's idle time before it, in each pool that the boundary needs. The best total of
tokens saved less what was paid, plus the worth of all room at these prices, is at least what any cache can hit: whatever a real
cache keeps fits into its pools, so it pays no more than the room is worth (weak duality). Requests are free of each other in
it, since no two of them pay for one idle time. So the bound is a maximum a request, and any prices give one. Pools that share
their room have one price, and what a token of each takes is its weight.

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

    from unified_tree.controllers.workbench.optimum.idle import Demand, Idle, Int64s

    Floats = NDArray[np.float64]
    Use = tuple[int, int, int, int]
    """Of a room, from a moment to before another one, so much."""


class Prices:
    """What requests choose at prices for room and time.

    A *candidate* is a depth at which a request may resume. Only few can be best.

    Args:
        idle: what was asked.
        demand: what boundaries need.

    Attributes:
        rooms: what can run short, at each moment, int64 [moments]: see `Demand.rooms`.
        claims: of each pool, its room and what a token or state takes of it: see `Demand.claims`.
        owner, depth, run: the candidates, int64 [candidates]: the request, ascending, the tokens, ascending, and the run in
            which the last of these lies.
        group: where the candidates of each request that has any begin, int64.
        first: where the runs of each request begin, int64 [moments + 1].
        saved: since when a state in each run takes room, int64 [runs].
    """

    def __init__(self, idle: Idle, demand: Demand) -> None:
        self._idle = idle
        self._demand = demand
        self._count = idle.count
        self.first = np.searchsorted(idle.owner, np.arange(self._count + 1))
        self._length = idle.end - idle.begin
        self.saved = idle.since if demand.locks_states else idle.saved
        self.owner, self.depth = _candidates(idle, demand)
        self.run = self._run_of(self.owner, self.depth - 1)
        self._window_begin = [np.maximum(0, self.depth - window) for window, _ in demand.windows]
        self._window_run = [self._run_of(self.owner, begin) for begin in self._window_begin]
        self.group = np.flatnonzero(np.append(True, self.owner[1:] != self.owner[:-1])) if self.owner.size else self.owner
        self.rooms = [np.maximum(0, np.broadcast_to(room, self._count)) for room in demand.rooms]
        self.claims = demand.claims

    def _run_of(self, owner: Int64s, token: Int64s) -> Int64s:
        """The run in which a token of a request lies; tokens behind its last are taken for the last."""
        idle = self._idle
        most = int(idle.end.max(initial=0)) + 1
        keys = idle.owner * most + idle.end
        return np.minimum(np.searchsorted(keys, owner * most + token, side="right"), self.first[owner + 1] - 1)

    def bound(self, summed: list[Floats]) -> tuple[float, list[Floats]]:
        """The bound at some prices, and how much of each room the requests take at these, [moments]. Cost: O(candidates).

        Args:
            summed: of each room, what a unit of it costs from the start to before each moment, [moments + 1].
        """
        resumes, rebuilds = self.worth(summed)
        depths = np.zeros(self._count, np.int64)
        value = sum(float((np.diff(cost) * room).sum()) for cost, room in zip(summed, self.rooms, strict=True))
        if not resumes.size:
            return value, [np.zeros(self._count) for _ in summed]
        best = np.maximum.reduceat(resumes, self.group)
        value += float(np.maximum(0.0, best).sum())
        sizes = np.diff(np.append(self.group, resumes.size))
        found = np.flatnonzero((resumes == np.repeat(best, sizes)) & (resumes > 0))
        found = found[np.unique(self.owner[found], return_index=True)[1]]
        depths[self.owner[found]] = self.depth[found]
        return value, self._usages(found, rebuilds[found], depths)

    def worth(self, summed: list[Floats]) -> tuple[Floats, NDArray[np.bool_]]:
        """What each candidate saves less what it pays, and whether it does best without windows, [candidates]."""
        demand, claims = self._demand, iter(self.claims)
        gain = self.depth.astype(np.float64)
        if demand.path_tokens is not None:
            gain -= self._to(self._rate(summed, next(claims), self._idle.since), self.depth, self.run)
        others = np.zeros(self.depth.size)
        for begin, run in zip(self._window_begin, self._window_run, strict=True):
            rate = self._rate(summed, next(claims), self._idle.since)
            others += self._to(rate, self.depth, self.run) - self._to(rate, begin, run)
        for _ in demand.states:
            others += self._rate(summed, next(claims), self.saved)[self.run]
        resumes = gain - others
        rebuilds = np.zeros(self.depth.size, bool)
        if demand.rebuild_tokens is not None:
            rebuilds = gain - demand.rebuild_tokens > resumes
            resumes = np.where(rebuilds, gain - demand.rebuild_tokens, resumes)
        return resumes, rebuilds

    def _rate(self, summed: list[Floats], claim: tuple[int, int], since: Int64s) -> Floats:
        """What a token of each run costs, or a state in it, [runs]."""
        (room, weight), owner = claim, self._idle.owner
        cost = summed[room]
        return np.where(since <= owner, weight * (cost[owner + 1] - cost[np.minimum(since, self._count)]), 0.0)

    def _to(self, rate: Floats, token: Int64s, run: Int64s) -> Floats:
        """What the tokens of a candidate's request before `token`, which lies in `run` or at its end, cost together."""
        costs = rate * self._length
        before = np.cumsum(costs) - costs
        base = before[self.first[self.owner]]
        total: Floats = before[run] - base + rate[run] * (token - self._idle.begin[run])
        return total

    def _usages(self, found: Int64s, rebuilds: NDArray[np.bool_], depths: Int64s) -> list[Floats]:
        idle, demand, claims = self._idle, self._demand, iter(self.claims)
        taken = [np.zeros(self._count) for _ in self.rooms]

        def take(amounts: Int64s, since: Int64s) -> None:
            room, weight = next(claims)
            taken[room] += weight * self._over_time(amounts, since)

        if demand.path_tokens is not None:
            take(np.clip(depths[idle.owner] - idle.begin, 0, self._length), idle.since)
        windowed = np.zeros(self._count, np.int64)
        kept = found[~rebuilds]
        windowed[self.owner[kept]] = self.depth[kept]
        for window, _ in demand.windows:
            end = windowed[idle.owner]
            take(np.clip(np.minimum(end, idle.end) - np.maximum(end - window, idle.begin), 0, None), idle.since)
        for _ in demand.states:
            states = np.zeros(idle.owner.size, np.int64)
            states[self.run[kept]] = 1
            take(states, self.saved)
        return taken

    def _over_time(self, amounts: Int64s, since: Int64s) -> Floats:
        """Amounts by run, summed over the runs that take room at each admission, [requests]."""
        idle, some = self._idle, (since <= self._idle.owner) & (amounts > 0)
        opened = np.bincount(since[some], amounts[some], self._count + 1)
        closed = np.bincount(idle.owner[some] + 1, amounts[some], self._count + 1)
        usage: Floats = np.cumsum(opened - closed, dtype=np.float64)[: self._count]
        return usage


def _candidates(idle: Idle, demand: Demand) -> tuple[Int64s, Int64s]:
    """Depths at which some request may resume best, as (owner, depth), sorted.

    Between the ends of runs, and those ends moved by a window, what a token more costs does not change. So the best depth is
    the first or the last of such a piece that states allow.
    """
    owners = [idle.owner] * (1 + len(demand.windows))
    edges = [idle.end, *(idle.end + window for window, _ in demand.windows)]
    owner, edge = np.concatenate(owners), np.concatenate(edges)
    last = np.zeros(idle.count, np.int64)
    last[idle.owner] = idle.end  # runs are in order, so the last one counts
    inside = edge <= last[owner]
    owner, edge = owner[inside], edge[inside]
    step = max(demand.grid, idle.grid)
    if demand.states:
        owner = np.concatenate([owner, owner])
        edge = np.concatenate([edge // step * step, edge // step * step + step])
        inside = (edge > 0) & (edge <= last[owner])
        owner, edge = owner[inside], edge[inside]
    most = int(edge.max(initial=0)) + 1
    keys = np.unique(owner * most + edge)
    return keys // most, keys % most


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

    def __init__(self, idle: Idle, demand: Demand, most: float) -> None:
        self._idle = idle
        self._demand = demand
        self._prices = prices = Prices(idle, demand)
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
            if self.bound <= (1 + CLOSE) * self.depths.sum():
                break

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
        before, (begin, end) = int(depths[owners[k]]), groups[k]
        rooms.give(owners[k], before)
        behind = depth[bisect_right(depth, before, begin, end) : end]
        depths[owners[k]] = rooms.take_deepest(owners[k], [before, *behind] if before else behind)
    return depths


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
