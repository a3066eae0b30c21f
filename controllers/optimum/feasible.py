"""A choice of depths for which there is room: the priced one, repaired.

At the best prices found some moments are asked for more than fits and others for less. So requests are let in one by one, those
first that get most for what they pay, each at the deepest place that still fits; what room is left goes to those who would go
deeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.controllers.optimum.demand import Demand
    from unified_tree.controllers.optimum.idle import Idle, Int64s
    from unified_tree.controllers.optimum.prices import Prices

    Floats = NDArray[np.float64]
    Use = tuple[int, int, int, int]
    """Of a room, from a moment to before another one, so much."""


def feasible_depths(idle: Idle, demand: Demand, prices: Prices, summed: list[Floats]) -> Int64s:
    """Where each request can resume, so that all of it fits together, [moments]. Cost: O(candidates x moments) at worst."""
    depths = np.zeros(idle.count, np.int64)
    if not prices.owner.size:
        return depths
    free = [room.copy() for room in prices.rooms]
    worth, _ = prices.worth(summed)
    depth, owner = prices.depth.tolist(), prices.owner.tolist()
    paid = np.maximum(prices.depth - worth, 1e-9)
    last = np.append(prices.group[1:], prices.owner.size)
    best = np.maximum.reduceat(worth, prices.group)
    chosen = [int(np.argmax(worth[begin:end])) + begin for begin, end in zip(prices.group.tolist(), last.tolist(), strict=True)]
    taken = [-1] * len(chosen)
    order = sorted((k for k in range(len(chosen)) if best[k] > 0), key=lambda k: -depth[chosen[k]] / paid[chosen[k]])
    for k in order:
        for candidate in range(chosen[k], int(prices.group[k]) - 1, -1):
            if _take(free, _uses(idle, demand, prices, candidate)):
                taken[k] = candidate
                break
    for k in np.argsort(-best, kind="stable").tolist():
        before = _uses(idle, demand, prices, taken[k]) if taken[k] >= 0 else []
        _give(free, before)
        for candidate in range(int(last[k]) - 1, max(taken[k], int(prices.group[k]) - 1), -1):
            if _take(free, _uses(idle, demand, prices, candidate)):
                taken[k] = candidate
                break
        else:
            _take(free, before)
    for candidate in taken:
        if candidate >= 0:
            depths[owner[candidate]] = depth[candidate]
    return depths


def _uses(idle: Idle, demand: Demand, prices: Prices, candidate: int) -> list[Use]:
    """What a candidate needs."""
    owner, depth, run = int(prices.owner[candidate]), int(prices.depth[candidate]), int(prices.run[candidate])
    runs = [
        (int(idle.since[at]), owner + 1, int(idle.begin[at]), min(depth, int(idle.end[at])))
        for at in range(int(prices.first[owner]), run + 1)
        if idle.since[at] <= owner
    ]
    uses: list[Use] = []
    claims = iter(prices.claims)
    if demand.path_tokens is not None:
        room, weight = next(claims)
        uses += [(room, since, until, weight * (end - begin)) for since, until, begin, end in runs]
    for window, _ in demand.windows:
        room, weight = next(claims)
        uses += [(room, s, u, weight * (end - max(begin, depth - window))) for s, u, begin, end in runs if end > depth - window]
    for _ in demand.states:
        room, weight = next(claims)
        if idle.since[run] <= owner:
            uses.append((room, int(idle.since[run]), owner + 1, weight))
    return uses


def _take(free: list[Int64s], uses: list[Use]) -> bool:
    """Take the room if there is; whether there was."""
    for at, (room, since, until, amount) in enumerate(uses):
        left = free[room][since:until]
        if left.min() < amount:
            _give(free, uses[:at])
            return False
        left -= amount
    return True


def _give(free: list[Int64s], uses: list[Use]) -> None:
    for room, since, until, amount in uses:
        free[room][since:until] += amount
