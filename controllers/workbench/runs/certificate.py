"""The interval in which the best possible hits of a row lie."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.workbench.optimum.descent import QUICK_STAGES, STAGES, Descent, whole_tokens
from unified_tree.controllers.workbench.optimum.idle import ALL_TOKENS, Asked, Demand, Idle, most_path_hits
from unified_tree.controllers.workbench.runs.clairvoyance import Resumptions
from unified_tree.controllers.workbench.runs.plan import PATH_ONLY, SHARED
from unified_tree.controllers.workbench.runs.row_counters import ALL_POOLS
from unified_tree.controllers.workbench.traces.workload import expand_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from unified_tree.controllers.cache.stats import BudgetStats, HostPoolStats, PoolStats
    from unified_tree.controllers.workbench.optimum.idle import Room
    from unified_tree.controllers.workbench.runs.plan import RowPlan
    from unified_tree.controllers.workbench.runs.row_counters import RowCounters
    from unified_tree.controllers.workbench.runs.row_result import Requests, RowResult
    from unified_tree.controllers.workbench.traces.workload import Int64s, Workload


class Situation:
    """What a row's requests asked of its cache, in the order in which they were admitted and beside the same running ones.

    Pools of both tiers count as one, and so do their budgets: what is on either can be hit.

    Args:
        certify: whether to take the time for a bound that is as low as can be.

    Attributes:
        repeated_tokens: what earlier requests had of the prompts, as far as it can be hit.
        most_hit_tokens: what no cache of the row's pools could exceed there.
    """

    def __init__(self, workload: Workload, counted: RowCounters, row: RowPlan, *, certify: bool) -> None:
        self._workload = workload
        requests, page_size = counted.requests, row.composition.page_size
        self._order = _admitted(requests)
        idle = Idle(_asked(workload, requests), workload.block_count, page_size)
        self.repeated_tokens = int((idle.end - idle.begin).sum())
        demand = _of_pages(counted, row, idle) if row.budget is None else _of_blocks(counted, row, idle)
        self._depths = most_path_hits(idle, ALL_TOKENS if demand.path_tokens is None else demand.path_tokens)
        self.most_hit_tokens = int(self._depths.sum())
        if demand.windows or demand.states:
            fitting = idle if demand.path_tokens is None else idle.fitting(demand.path_tokens)
            descent = Descent(fitting, demand, self.most_hit_tokens)
            descent.go(STAGES if certify else QUICK_STAGES)
            self.most_hit_tokens, self._depths = whole_tokens(descent.bound), descent.depths

    def plan(self) -> Resumptions:
        """A plan that comes close, if a cache can follow it."""
        depths = np.zeros(len(self._workload.requests), np.int64)
        depths[self._order] = self._depths[::2]
        others = np.setdiff1d(np.arange(depths.size), self._order)
        return Resumptions(order=np.concatenate((self._order, others)), depths=depths)


def _of_pages(counted: RowCounters, row: RowPlan, idle: Idle) -> Demand:
    """What is asked of pools with page counts, beside running requests."""
    components, page_size = row.composition.components, row.composition.page_size
    if row.host is None:
        rooms: dict[str, Room] = {n: count - _held(counted.held[n], counted.requests) for n, count in row.page_counts.items()}
        return Demand.of(components, page_size, rooms)
    rooms = {name: count + row.host.page_counts.get(name, 0) for name, count in row.page_counts.items()}
    demand = Demand.of(components, page_size, rooms)  # copies that are under way lock idle pages, too
    return demand if demand.path_tokens is None else replace(demand, path_tokens=demand.path_tokens - idle.pinned)


def _of_blocks(counted: RowCounters, row: RowPlan, idle: Idle) -> Demand:
    """What is asked of a memory that all pools share, likewise."""
    components, page_size, budget = row.composition.components, row.composition.page_size, row.both_budgets
    if row.host is None:
        blocks = budget.block_count - _held(counted.held[ALL_POOLS], counted.requests)
        return Demand.sharing(components, page_size, blocks, budget.page_blocks)
    return Demand.sharing(components, page_size, budget.block_count, budget.page_blocks, idle.pinned)


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
    return replace(
        row,
        optimum_low_tokens=max(same.hit_tokens for same in alike) if len(highest) == len(alike) else None,
        optimum_high_tokens=max(highest) if len(highest) == len(alike) else None,
        path_only_hit_rate=twin.hit_rate if twin is not None and (twin.link is None) == (row.link is None) else None,
    )


def _pools(row: RowResult) -> object:
    """The pools of a row or the budgets that they share, and what is kept in them."""
    cache = row.cache
    tiers = [_rooms(cache.pools, cache.budget), _rooms(cache.host_pools, cache.host_budget)]
    return row.is_path_only, repr(tiers)


def _rooms(pools: Mapping[str, PoolStats | HostPoolStats], budget: BudgetStats | None) -> object:
    if budget is not None:
        return budget.total, budget.block_bytes, dict(budget.pool_page_blocks)
    return {name: pool.total for name, pool in pools.items()}
