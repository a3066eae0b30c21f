"""What every consensus promises: of one rank, of ranks that are threads, and of processes over gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rank_scripts import Plain, fails, page_count_of, random_run, random_run_over_group, vote_of
from rank_threads import RankThreads
from rank_workers import RankWorkers

from unified_tree.controllers.ranks import LocalConsensus, MessageShape

TICKETS, OPERATIONS, TICKS = 60, 40, 130
Run = Callable[[int], list[list[Plain]]]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankWorkers]:
    made = RankWorkers(tmp_path_factory.mktemp("consensus"))
    yield made
    assert set(made.end()) <= {0}


@pytest.fixture(params=["local", "3 threads", "5 threads with small messages", "2 processes"])
def run(request: pytest.FixtureRequest) -> Run:
    """Random lives of all ranks from a seed; their agreements, by rank."""
    given: dict[str, Any] = {"tickets": TICKETS, "operations": OPERATIONS, "ticks": TICKS}
    if request.param == "local":
        return lambda seed: [random_run(LocalConsensus(), 0, seed=seed, **given)]
    if request.param == "2 processes":
        workers: RankWorkers = request.getfixturevalue("workers")
        return lambda seed: workers.run(random_run_over_group, 2, seed=seed, **given)
    if request.param == "3 threads":
        return lambda seed: RankThreads(3).run(random_run, seed=seed, **given)
    small = MessageShape(slots=3, candidates=64, completions=8)
    return lambda seed: RankThreads(5).run(random_run, small, seed=seed, **given)


@pytest.mark.parametrize("seed", [1, 2])
def test_all_ranks_agree_on_what_all_can_do(run: Run, seed: int, record_property: Callable[[str, object], None]) -> None:
    by_rank = run(seed)
    ranks = range(len(by_rank))
    for agreements in by_rank[1:]:
        assert agreements == by_rank[0], "the same on every rank, in the same tick"
    assert [agreement[0] for agreement in by_rank[0]] == list(range(TICKS))
    decided: dict[int, tuple[int, ...]] = {}
    cancelled: set[int] = set()
    done: dict[str, list[int]] = {kind: [] for kind in MessageShape().kinds}
    for _, decisions, dropped, finished in by_rank[0]:
        assert [ticket for ticket, _ in decisions] == sorted(ticket for ticket, _ in decisions)
        assert list(dropped) == sorted(dropped)
        decided.update(decisions)
        cancelled.update(dropped)
        for kind, numbers, failed in finished:
            done[kind] += numbers
            assert list(failed) == [n for n in numbers if any(fails(rank, n, kind, seed) for rank in ranks)]
    assert all(numbers == list(range(OPERATIONS)) for numbers in done.values())
    for ticket in range(TICKETS):
        if ticket % 11 == 3 and ticket % 2 in ranks:
            assert ticket in cancelled and ticket not in decided
            continue
        page_count = page_count_of(ticket, seed)
        votes = [vote_of(rank, ticket, seed, page_count) for rank in ranks]
        common = {n for n in range(page_count + 1) if all(n < len(vote) and vote[n] for vote in votes)}
        assert max(decided[ticket]) == max(common)
        assert set(decided[ticket]) <= common
    record_property("operations", (TICKETS + OPERATIONS * len(done)) * len(ranks))
