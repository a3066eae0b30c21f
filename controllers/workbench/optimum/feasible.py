"""A choice of depths for which there is room: the priced one, repaired.

At the best prices found some moments are asked for more than fits and others for less. So requests are let in one by one, those
first that get most for what they pay, each at the deepest place that still fits; what room is left goes to those who would go
deeper.
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
