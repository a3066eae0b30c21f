"""Servers that are ranks of one: the same load, but transfers and stores with luck of their own. Their trees stay the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rank_threads import RankThreads
from scenario import Scenario
from sim_server import SimServer

from unified_tree.controllers import LoadCost, WritePolicy
from unified_tree.controllers.ranks import Consensus, LocalConsensus
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy

TICKS = 80
EAGER = PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, least_tokens=1, most_host_share=1.0, batch_pages=2)
UNSHARED = ("cancel_transfer", "restart")
"""What happens to one rank alone, and would be told to its scheduler alone; and what ends the consensus."""


def scenario_of(seed: int) -> Scenario:
    """A life without failing copies, which a scheduler would hear of on one rank only, and with much to prefetch."""
    found = Scenario.of(seed, TICKS)
    actions = {name: weight for name, weight in found.actions.items() if name not in UNSHARED}
    return replace(
        found,
        actions=actions | {"forget": 2, "recall": 6, "arrive": 10},
        dies_at=None,
        faults=replace(found.faults, fails=0.0),
        write_policy=WritePolicy.WRITE_THROUGH,
        most_backed_up=1.0,
        poll=1.0,
        turns=1.0,
        letters=2,
        load_cost=LoadCost(least_tokens=1),
        host_pages=dict.fromkeys(found.host_pages, 400),
        longest=4,
        store=None if found.store is None else replace(found.store, page_count=400, prefetch=EAGER, step_ns=2_000),
    )


def one_rank(consensus: Consensus, rank: int, scenario: Scenario) -> SimServer:
    server = SimServer(scenario, rank=rank, ranks=consensus)
    server.run()
    return server


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_do_the_same_whatever_their_stores_answer(ranks: int) -> None:
    grafts = 0
    stores = [seed for seed in range(60) if Scenario.of(seed, TICKS).store is not None]
    for seed in stores[: 24 if ranks == 2 else 8]:
        servers = RankThreads(ranks).run(one_rank, scenario=scenario_of(seed))
        for tick, events in enumerate(zip(*(server.history[:-1] for server in servers), strict=True)):
            assert len(set(events)) == 1, f"seed {seed}, event {tick}"
        grafts += servers[0].events["storage_hits"]
    assert grafts or ranks > 2


def test_a_lone_rank_with_a_consensus_lives_too() -> None:
    for seed in range(20):
        SimServer(scenario_of(seed), ranks=LocalConsensus()).run()
