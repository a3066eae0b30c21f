"""Lives of servers that are ranks of one: the same load, and a store that is hit in most of them."""

from __future__ import annotations

from dataclasses import replace

from scenario import Scenario
from sim_store import StoreScenario

from unified_tree import BlockBudget
from unified_tree.controllers import LoadCost, WritePolicy
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy
from unified_tree.controllers.testing import StorageFaults

TICKS = 160
EAGER = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0, batch_pages=2)
SEEDS = [seed for seed in range(80) if Scenario.of(seed, TICKS).store is not None]
UNSHARED = ("cancel_transfer", "restart")
"""What happens to one rank alone, and would be told to its scheduler alone; and what ends the consensus."""


def scenario_of(seed: int) -> Scenario:
    """A life without failing copies, which a scheduler would hear of on one rank only, and with much to prefetch.

    The store of every second one fails now and then, on each rank by its own luck.
    """
    found = Scenario.of(seed, TICKS)
    faults = StorageFaults(lost=0.01, torn=0.01, corrupt=0.01) if seed % 2 else StorageFaults()
    actions = {name: weight for name, weight in found.actions.items() if name not in UNSHARED}
    return replace(
        found,
        actions=actions | {"forget": 2, "recall": 14, "arrive": 10},
        dies_at=None,
        faults=replace(found.faults, fails=0.0),
        write_policy=WritePolicy.WRITE_THROUGH,
        max_backup_share=1.0,
        poll=1.0,
        turns=1.0,
        letters=2,
        load_cost=LoadCost(min_tokens=1),
        host_pages=dict.fromkeys(found.host_pages, 400),
        longest=4,
        device_pages={name: max(count, 30) for name, count in found.device_pages.items()},
        budget=_roomy(found.budget, 30),
        host_budget=_roomy(found.host_budget, 400),
        max_running=max(found.max_running, 6),
        publish=1.0,
        neighbour=False,
        store=None if found.store is None else store_of(found.store, faults),
    )


def _roomy(budget: BlockBudget | None, pages: int) -> BlockBudget | None:
    """A budget, where there is one, for so many pages of each pool at least."""
    if budget is None:
        return None
    return replace(budget, block_count=max(budget.block_count, pages * sum(budget.page_blocks.values())))


def store_of(store: StoreScenario, faults: StorageFaults) -> StoreScenario:
    """With its own bounds, but room enough that what was stored is found again."""
    bounds = store.prefetch
    return replace(
        store,
        page_count=400,
        faults=faults,
        prefetch=replace(EAGER, room_pages=bounds.room_pages, max_open=bounds.max_open, max_outcomes=bounds.max_outcomes),
        persist=replace(store.persist, max_waiting=100),
        step_ns=2_000,
    )
