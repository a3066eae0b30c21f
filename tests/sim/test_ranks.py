"""Servers that are ranks of one: the same load, but transfers and stores with luck of their own. Their trees stay the same."""

from __future__ import annotations

from collections import Counter

import pytest
from rank_threads import RankThreads
from scenario import RANK_SEEDS, Scenario, rank_scenario
from sim_server import SimServer
from sim_sessions import VERBS

from unified_tree.controllers.ranks import Consensus, LocalConsensus, MessageShape


def one_rank(consensus: Consensus, rank: int, scenario: Scenario) -> SimServer:
    server = SimServer(scenario, rank=rank, ranks=consensus)
    server.run()
    return server


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_do_the_same_whatever_their_stores_answer(ranks: int) -> None:
    seeds = RANK_SEEDS[: 10 if ranks == 2 else 5]
    shapes = [MessageShape(), MessageShape(slots=1, candidates=8, completions=8), MessageShape(slots=3, candidates=16)]
    hits: Counter[int] = Counter()
    told: Counter[str] = Counter()
    for seed in seeds:
        servers = RankThreads(ranks).run(one_rank, shapes[seed % len(shapes)], scenario=rank_scenario(seed))
        for tick, events in enumerate(zip(*(server.history[:-1] for server in servers), strict=True)):
            assert len(set(events)) == 1, f"seed {seed}, event {tick}"
        hits[seed] = servers[0].events["storage_hits"]
        assert len({server.events["storage_hits"] for server in servers}) == 1
        assert len({str(server.cache.stats().hints) for server in servers}) == 1
        told.update(servers[0].events)
    assert sum(count > 0 for count in hits.values()) >= len(seeds) * 3 // 4, hits
    assert hits.total() >= 5 * len(seeds), hits
    assert all(told[f"told: {verb} True"] for verb in VERBS), told


def test_a_lone_rank_with_a_consensus_lives_too() -> None:
    for seed in range(10):
        SimServer(rank_scenario(seed), ranks=LocalConsensus()).run()
