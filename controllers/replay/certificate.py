"""The interval in which the best possible hits of a row lie."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.optimum.demand import Demand
from unified_tree.controllers.optimum.descent import Descent, whole_tokens
from unified_tree.controllers.optimum.idle import Asked, Idle
from unified_tree.controllers.optimum.paths import most_path_hits
from unified_tree.controllers.optimum.prices import Prices
from unified_tree.controllers.replay.plan import PATH_ONLY, SHARED, RowKind
from unified_tree.controllers.replay.resumptions import Resumptions
from unified_tree.controllers.replay.workload import expand_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from unified_tree.controllers.optimum.demand import Room
    from unified_tree.controllers.replay.row_counters import RowCounters
    from unified_tree.controllers.replay.row_plan import RowPlan
    from unified_tree.controllers.replay.row_result import Requests, RowResult
    from unified_tree.controllers.replay.workload import Int64s, Workload

ALL_TOKENS = 1 << 60


def repeated_tokens(workload: Workload, counted: RowCounters, row: RowPlan) -> int:
    """What earlier requests had of a row's prompts, as far as it can be hit."""
    idle = Idle(_asked(workload, counted.requests), workload.block_count, row.composition.page_size)
    return int((idle.end - idle.begin).sum())


class Situation:
    """What a row's requests asked of its cache, in the order in which they were admitted and beside the same running ones.

    Pools of both tiers count as one: what is on either can be hit.

    Attributes:
        repeated_tokens: what earlier requests had of the prompts, as far as it can be hit.
        most_hit_tokens: what no cache of the row's pools could exceed there.
    """

    def __init__(self, workload: Workload, counted: RowCounters, row: RowPlan) -> None:
        self._workload = workload
        requests, page_size = counted.requests, row.composition.page_size
        self._order = _admitted(requests)
        idle = Idle(_asked(workload, requests), workload.block_count, page_size)
        self.repeated_tokens = int((idle.end - idle.begin).sum())
        rooms: dict[str, Room] = {}
        for name, count in row.page_counts.items():
            if row.host is None:
                rooms[name] = count - _held(counted.held_pages[name], requests)
            else:  # copies that are under way lock idle pages, too
                rooms[name] = count + row.host.page_counts.get(name, 0)
        demand = Demand.of(row.composition.components, page_size, rooms)
        if demand.path_tokens is not None and row.host is not None:
            demand = replace(demand, path_tokens=demand.path_tokens - idle.pinned)
        self._depths = most_path_hits(idle, ALL_TOKENS if demand.path_tokens is None else demand.path_tokens)
        self.most_hit_tokens = int(self._depths.sum())
        if demand.windows or demand.states:
            descent = Descent(idle, demand, Prices(idle, demand), self.most_hit_tokens)
            descent.go()
            self.most_hit_tokens, self._depths = whole_tokens(descent.bound), descent.depths

    def resumptions(self) -> Resumptions:
        """A plan that comes close, in this order."""
        depths = np.zeros(len(self._workload.requests), np.int64)
        depths[self._order] = self._depths[::2]
        others = np.setdiff1d(np.arange(depths.size), self._order)
        return Resumptions(order=np.concatenate((self._order, others)), depths=depths)


def _admitted(requests: Requests) -> Int64s:
    """The indices of the requests that were admitted, in that order."""
    order = np.argsort(requests["admission"], kind="stable")
    return order[requests["admission"][order] >= 0]


def _held(by_admission: list[list[int]], requests: Requests) -> Int64s:
    """What running requests held at each moment, [moments]. Admissions that came to nothing count to the one before."""
    admissions = requests["admission"][_admitted(requests)]
    held = np.array(by_admission, np.int64).reshape(-1, 2)
    most = np.maximum.reduceat(held[:, 1], admissions) if admissions.size else held[:, 1]
    return np.column_stack((held[admissions, 0], most)).ravel()


def _asked(workload: Workload, requests: Requests) -> Iterator[Asked | None]:
    """The requests that were admitted, in that order, and when they had computed what they left."""
    order = _admitted(requests)
    admissions = requests["admission"][order]
    prompt_done = np.searchsorted(admissions, requests["prompt_done"][order])
    done = np.searchsorted(admissions, requests["done"][order])
    for index, prompt_end, end in zip(order.tolist(), prompt_done.tolist(), done.tolist(), strict=True):
        request = workload.requests[index]
        yield Asked(
            blocks=request.blocks(),
            block_tokens=request.block_tokens,
            prompt_tokens=request.prompt_tokens,
            prompt_done=2 * prompt_end,
            done=2 * end,
            answer_blocks=None if request.answer_runs is None else expand_runs(request.answer_runs),
        )
        yield None


def certified(rows: Sequence[RowResult]) -> list[RowResult]:
    """The rows of a report, each with what stands beside its figure: the interval in which the best possible lies in the orders
    of admissions of all rows of its pools, and its path-only twin.

    A row of these pools hit the lower bound in its own order, and in no row's order more than the upper one is possible.
    """
    alike: defaultdict[object, list[RowResult]] = defaultdict(list)
    for row in rows:
        alike[_pools(row)].append(row)
    twins = {row.policy: row for row in rows if row.is_path_only}
    return [_beside(row, alike[_pools(row)], twins.get(PATH_ONLY + row.policy.removeprefix(SHARED))) for row in rows]


def _beside(row: RowResult, alike: list[RowResult], twin: RowResult | None) -> RowResult:
    highest = [same.optimum_high_tokens for same in alike if same.optimum_high_tokens is not None]
    if row.has_paths_alone and row.policy != RowKind.UNBOUNDED.value:
        twin = row
    return replace(
        row,
        optimum_low_tokens=max(same.hit_tokens for same in alike) if len(highest) == len(alike) else None,
        optimum_high_tokens=max(highest) if len(highest) == len(alike) else None,
        path_only_hit_rate=twin.hit_rate if twin is not None and (twin.link is None) == (row.link is None) else None,
    )


def _pools(row: RowResult) -> object:
    """The pools of a row, and what is kept in them."""
    tiers = [{name: pool.total for name, pool in pools.items()} for pools in (row.cache.pools, row.cache.host_pools)]
    return row.is_path_only, repr(tiers)
