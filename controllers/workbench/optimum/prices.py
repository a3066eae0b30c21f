"""An upper bound for hybrids: a price for room and time.

Let a pool's room cost something for each token and admission, whatever it is. A request may then resume wherever it likes, if
it pays for what it resumes from: each token's idle time before it, in each pool that the boundary needs. The best total of
tokens saved less what was paid, plus the worth of all room at these prices, is at least what any cache can hit: whatever a real
cache keeps fits into its pools, so it pays no more than the room is worth (weak duality). Requests are free of each other in
it, since no two of them pay for one idle time. So the bound is a maximum a request, and any prices give one. Pools that share
their room have one price, and what a token of each takes is its weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.workbench.optimum.demand import Demand
    from unified_tree.controllers.workbench.optimum.idle import Idle

    Int64s = NDArray[np.int64]
    Floats = NDArray[np.float64]


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
