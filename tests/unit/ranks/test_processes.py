"""Two and four real processes over gloo, with faults. No test asserts how long anything takes, only that it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rank_scripts import (
    fault_at_fifth_tick,
    missing_page,
    other_settings,
    random_run_over_group,
    random_run_over_new_group,
    simulated_server_with_a_fault,
    simulated_servers,
    stop_under_watch,
)
from rank_workers import Died, RankWorkers
from scenario import RANK_SEEDS
from waiting import PROGRAM_S

from unified_tree.terms.errors import ConfigurationError, RankError, RankTimeoutError

ROOT = Path(__file__).resolve().parents[3]
SHORT_S = 1.2
"""For those who will not come."""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankWorkers]:
    made = RankWorkers(tmp_path_factory.mktemp("ranks"))
    made.ready(4)
    yield made
    assert set(made.end()) <= {0}, "all end by themselves"


def test_a_group_beside_the_default_one(workers: RankWorkers, tmp_path: Path) -> None:
    store = str(tmp_path / "default group")
    results = workers.run(random_run_over_new_group, 2, store=store, seed=6, tickets=10, operations=5, ticks=30)
    assert results[0] == results[1]
    assert results[0] == workers.run(random_run_over_group, 2, seed=6, tickets=10, operations=5, ticks=30)[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_missing_page_shortens_to_what_all_can_restore(workers: RankWorkers, ranks: int) -> None:
    results = workers.run(missing_page, ranks, who=ranks - 1)
    assert all(agreements == results[0] for agreements in results)
    assert [agreement[1] for agreement in results[0]] == [(), ((0, (0, 2, 4)),), (), ()]


def test_a_slow_rank_is_waited_for(workers: RankWorkers) -> None:
    results = workers.run(fault_at_fifth_tick, 4, who=2, fault="sleep")
    assert [result[:2] for result in results] == [(20, "")] * 4


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_too_slow(workers: RankWorkers, ranks: int, tmp_path: Path) -> None:
    results = workers.run(fault_at_fifth_tick, ranks, who=1, fault="late", timeout_s=SHORT_S, ended=tmp_path)
    assert all(kind in ("RankTimeoutError", "RankError") for _, kind, *_ in results), results
    assert any(kind == "RankTimeoutError" for _, kind, *_ in results), "of those that wait, the first to end"
    for agreed, kind, text, again in results:
        assert agreed in (5, 6), "the message before may have come"
        assert f"time-out of {SHORT_S} s" in text
        assert "anew together" in text
        assert again.startswith("ranks disagree since tick") and text in again, kind


def test_a_rank_that_went_another_way_is_named_on_all(workers: RankWorkers) -> None:
    results = workers.run(fault_at_fifth_tick, 4, who=2, fault="diverge")
    assert {result[:3] for result in results} == {results[0][:3]}, "on all ranks in the same tick"
    assert results[0][1] == "DivergenceError"
    assert "tick 6: the history of ranks [2], as sent in tick 5, differs from that of [0, 1, 3]" in results[0][2]


@pytest.mark.parametrize(
    ("setting", "text"), [("shape", "different message shapes"), ("identity", "ticket 0 is about another request")]
)
def test_ranks_that_do_not_belong_together(workers: RankWorkers, setting: str, text: str) -> None:
    results = workers.run(other_settings, 4, setting=setting)
    assert len(set(results)) == 1
    assert results[0][0] == "DivergenceError"
    assert text in results[0][1]


def test_a_rank_that_closes_first(workers: RankWorkers) -> None:
    left, other = workers.run(fault_at_fifth_tick, 2, who=0, fault="close")
    assert left[1] == "closed"
    assert other[1] in ("RankError", "RankTimeoutError")


def test_a_rank_that_stops_with_its_connections_open(workers: RankWorkers) -> None:
    results = workers.run(fault_at_fifth_tick, 4, stops=3, who=3, fault="stop", timeout_s=SHORT_S)
    assert results[3] == Died(9)
    assert any(kind == "RankTimeoutError" for _, kind, *_ in results[:3])
    assert all(f"time-out of {SHORT_S} s" in text for _, _, text, *_ in results[:3])


def test_a_watch_names_the_rank_that_stops(workers: RankWorkers, tmp_path: Path) -> None:
    results = workers.run(stop_under_watch, 3, stops=1, store=str(tmp_path / "watched"), who=1, timeout_s=SHORT_S)
    assert results[1] == Died(9)
    for text, lines in (results[0], results[2]):
        named = next(line for line in lines if line.startswith("rank 1 (process "))
        assert "has not answered for 1.2 s: it is stopped, or hangs" in named
        assert "Start the ranks anew together" in text
    assert any("Rank 1 (process " in text for text, _ in (results[0], results[2])), "an error that waited says it too"


@pytest.mark.parametrize("ranks", [4, 2])  # in an order that has few workers started again
def test_a_rank_that_is_killed(workers: RankWorkers, ranks: int) -> None:
    results = workers.run(fault_at_fifth_tick, ranks, who=1, fault="die")
    assert results[1] == Died(9)
    for rank, (agreed, kind, text, *_) in enumerate(result for result in results if not isinstance(result, Died)):
        assert kind in ("RankError", "RankTimeoutError"), (rank, text)
        assert agreed in (5, 6)
        assert "anew together" in text


@pytest.mark.parametrize("seeds", [RANK_SEEDS[:4], RANK_SEEDS[4:8], RANK_SEEDS[8:12]], ids=["first", "second", "third"])
def test_servers_of_two_processes_hit_their_stores_and_do_the_same(workers: RankWorkers, seeds: list[int]) -> None:
    one, other = workers.run(simulated_servers, 2, seeds=seeds)
    assert one == other
    hits = {seed: tokens for seed, (_, _, tokens) in zip(seeds, one, strict=True)}
    assert sum(tokens > 0 for tokens in hits.values()) >= 3, hits


@pytest.mark.parametrize("tick", [3, 20])
@pytest.mark.parametrize("seed", RANK_SEEDS[6:9])
def test_servers_of_two_processes_that_fall_apart_close_everything(workers: RankWorkers, seed: int, tick: int) -> None:
    results = workers.run(simulated_server_with_a_fault, 2, seed=seed, tick=tick)
    assert results == [(True, True, True, "this consensus was closed", 0)] * 2


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_time_out_that_is_none(seconds: float) -> None:
    from unified_tree.controllers.ranks import DistributedConsensus

    nothing: Any = object()
    with pytest.raises(ConfigurationError, match="timeout_s must be"):
        DistributedConsensus(nothing, timeout_s=seconds)
    with pytest.raises(ConfigurationError, match="not a process group"):
        DistributedConsensus(nothing)


class SlowWork:
    """What gloo has under way: not done before so many waits, each of which is in vain."""

    def __init__(self, done_after: int, *, fails: bool = False) -> None:
        self.done_after = done_after
        self.fails = fails
        self.waits: list[float] = []
        self.now_ns = 0

    def is_completed(self) -> bool:
        return len(self.waits) >= self.done_after

    def wait(self, limit: Any = None) -> None:
        if limit is None:
            if self.fails:
                raise RuntimeError("Connection closed by peer")
            return
        assert limit.total_seconds() > 0, "0 means for ever"
        assert limit.microseconds % 1000 == 0, "torch drops what is less than a millisecond"
        self.now_ns += round(limit.total_seconds() * 1e9 * 0.999)
        self.waits.append(limit.total_seconds())
        raise RuntimeError("Operation timed out!")


class LoneGroup:
    """A group that has only this work."""

    def __init__(self, work: SlowWork | None) -> None:
        self.work = work

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def allreduce(self, *_: Any) -> SlowWork:
        if self.work is None:
            raise RuntimeError("no backend for cpu")
        return self.work


class LateRank:
    """A watch that knows who is late."""

    sent = 0

    def late(self) -> str:
        """See RankWatch."""
        return "rank 1 (process 5) is late"


def started(work: SlowWork | None, watch: Any = None) -> Any:
    from unified_tree.controllers.ranks.distributed_consensus import GlooReduction

    group: Any = LoneGroup(work)
    clock = lambda: 0 if work is None else work.now_ns  # noqa: E731
    reduction = GlooReduction(group, timeout_s=1, join_timeout_s=3.5, clock=clock, watch=watch)
    reduction.start(bytes(range(4)))
    return reduction


def test_waiting_ends_by_the_given_clock() -> None:
    work = SlowWork(done_after=1000)
    reduction = started(work)
    with pytest.raises(RankTimeoutError, match=r"time-out of 3\.5 s"):
        reduction.finish()
    assert 4 <= len(work.waits) < 12 and max(work.waits) < 1.1
    reduction.close()
    reduction.close()


@pytest.mark.parametrize(("elapsed_ns", "error"), [(3_499_999_999, RankError), (3_500_000_000, RankTimeoutError)])
def test_what_fails_after_the_time_out_was_too_late(elapsed_ns: int, error: type[RankError]) -> None:
    work = SlowWork(done_after=0, fails=True)
    reduction = started(work)
    work.now_ns = elapsed_ns
    with pytest.raises(RankError) as caught:
        reduction.finish()
    assert caught.type is error
    assert ("Connection closed by peer" in str(caught.value)) == (error is RankError)


@pytest.mark.parametrize("work", [SlowWork(done_after=1000), SlowWork(done_after=0, fails=True)], ids=["late", "gone"])
def test_errors_name_the_rank_that_a_watch_knows(work: SlowWork) -> None:
    watch = LateRank()
    reduction = started(work, watch)
    assert watch.sent == 1
    with pytest.raises(RankError, match=r"\. Rank 1 \(process 5\) is late\. Start the ranks anew together"):
        reduction.finish()


def test_who_lost_a_rank_lets_go_of_the_group() -> None:
    """Or its connections stay open, and others wait for what could have been told them at once."""
    from unified_tree.controllers.ranks import DistributedConsensus

    def broken(group: Any) -> DistributedConsensus:
        consensus = DistributedConsensus(group)
        with suppress(RankError):
            consensus.tick()
        consensus.close()
        return consensus

    group = LoneGroup(SlowWork(done_after=0, fails=True))
    there = weakref.ref(group)
    kept = broken(group)
    del group
    assert there() is None, kept


def test_a_message_that_comes_just_as_a_wait_ends_has_come() -> None:
    work = SlowWork(done_after=3)
    reduction = started(work)
    assert reduction.finish() == bytes([0, 1, 2, 3])
    reduction.start(bytes(4))
    assert work.is_completed()
    work.now_ns += 10**12
    assert reduction.finish() == bytes(4), "it came long ago, and nobody looked"


def test_a_group_that_cannot_says_why() -> None:
    with pytest.raises(RankError, match=r"as gloo can.*no backend for cpu"):
        started(None)


def test_the_benchmark_runs_and_ranks_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "benches.ranks", "--quick", "--json", str(tmp_path / "r.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())
    assert {(row["ranks"], row["ticks"], row["votes"]) for row in rows} == {
        (ranks, ticks, votes) for ranks in (1, 2) for ticks in ("at once", "after a step") for votes in (0, 8)
    }
    alone, together = ({row["hash"] for row in rows if row["ranks"] == ranks} for ranks in (1, 2))
    assert alone == together
    assert all(row["right"] and row["message_bytes"] < 3000 for row in rows)
