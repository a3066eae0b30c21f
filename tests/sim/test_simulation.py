"""A whole server over both tiers in virtual time: whatever one seed brings, no byte is wrong and every page comes home.

A failing life names its seed and how to replay it. What was found this way is kept as a test in `regressions`. A default run
lives 150 lives, which are the same every time, and 5 new ones with every commit, of 150 ticks and about two operations a tick,
each tick checked whole; and 20 more beside a neighbour. `make test` lives the first 75 compiled and the next interpreted, where
there are both. `make deep` lives 1,760 others, 160 of them of 1,000 ticks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from scenario import RANK_SEEDS, RANK_TICKS, Scenario, rank_scenario
from sim_server import SimServer
from waiting import PROGRAM_S

TICKS = 150
BATCHES = (1, 3)
LIVES = 75
NO_COMMIT = 20_260_000
SUPPORT = Path(__file__).parents[1] / "support"
EVENTS = {
    "arrive: loading",
    "step: over a load",
    "step: no room",
    "step: load failed",
    "abort: while loading",
    "cancel_transfer: BACKUP",
    "drop: backup failed",
    "drop: load cancelled",
    "drop: host full",
    "drop: completion not expected",
    "drop: commit of what was invalidated",
    "reject: cut",
    "preempt: done",
    "preempt: nothing kept",
    "step: finished with its state",
    "loaded",
    "backed_up",
    "lost",
    "host_hits",
    "prefetched",
    "storage_hits",
    "store_failed",
    "forget: DEVICE and HOST",
    "arrive: waits for its prefetch",
    "swap_store: detached",
    "drop: prefetch out of time",
    "drop: prefetch failed: closed",
    "drop: persist queue full",
    "drop: persist incomplete: store failed",
    "drop: persist incomplete: store dropped",
    "restart: done",
    "abandon: begun",
    "invalidate: twice",
    "drop: prefetch forgotten",
    "drop: prefetch queue full",
    "neighbour: prefetched",
    "told: end",
    "told: retain True",
    "told: pin True",
    "told: demote True",
    "told: share True",
    "told: prefetch True",
    "refused again without hints",
}
"""What every batch of lives must have seen, or else it shows little."""


def live(seed: int, ticks: int = TICKS) -> SimServer:
    server = SimServer(Scenario.of(seed, ticks))
    server.run()
    return server


def seed_of_commit() -> int:
    """Another life with every commit; a constant where there is none."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=SUPPORT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return NO_COMMIT
    return int(done.stdout.strip()[:8], 16)


@pytest.mark.parametrize("batch", BATCHES)
def test_lives(batch: int, record_property: Any) -> None:
    events: Counter[str] = Counter()
    for seed in range(batch * LIVES, (batch + 1) * LIVES):
        events.update(live(seed).events)
    assert {name for name in EVENTS if not events[name]} == set()
    record_property("operations", TICKS * LIVES)


def test_lives_over_a_store_in_files(tmp_path: Path, record_property: Any) -> None:
    """Which several tiers open, one after another, and two at a time while one is replaced."""
    events: Counter[str] = Counter()
    seeds = [seed for seed in range(500, 560) if Scenario.of(seed, TICKS).store is not None][:12]
    for seed in seeds:
        server = SimServer(Scenario.of(seed, TICKS), tmp_path / str(seed))
        server.run()
        events.update(server.events)
    assert {name for name in ("restart: done", "prefetched", "swap_store: attached") if not events[name]} == set()
    record_property("operations", TICKS * len(seeds))


def neighbours(seed: int) -> SimServer:
    """Two deployments over one store that both hit it, and change their weights often, mostly without a name for them."""
    scenario = rank_scenario(seed)
    server = SimServer(replace(scenario, neighbour=True, actions=scenario.actions | {"invalidate": 3}))
    server.run()
    return server


def test_neighbours_on_one_store_take_nothing_of_each_other(record_property: Any) -> None:
    seeds = RANK_SEEDS[:10]
    lives = [neighbours(seed).events for seed in seeds]
    assert sum(life["storage_hits"] > 0 and life["neighbour: storage_hits"] > 0 for life in lives) >= len(seeds) * 2 // 3
    record_property("operations", 2 * RANK_TICKS * len(seeds))


def test_neighbours_that_call_their_weights_alike_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_tree.controllers.ranks.rank_agreement.uuid4", lambda: UUID(int=0))
    with pytest.raises(AssertionError, match=r"should hold|holds"):
        _live_beside_one_another(RANK_SEEDS[:16])


def _live_beside_one_another(seeds: list[int]) -> None:
    for seed in seeds:
        neighbours(seed)


def test_lives_of_this_commit(record_property: Any) -> None:
    first = seed_of_commit()
    for seed in range(first, first + 5):
        live(seed)
    record_property("operations", 5 * TICKS)


def test_one_seed_is_one_history() -> None:
    """In one process, and in others, whose hashes of strings differ."""
    seeds = [3, 8, 21, 34]
    here = [SimServer(Scenario.of(seed, TICKS)).run() for seed in seeds]
    assert len(set(here)) == len(here)
    assert here == [SimServer(Scenario.of(seed, TICKS)).run() for seed in seeds]
    for hash_seed in ("1", "2"):
        assert replay(*seeds, hash_seed=hash_seed) == here


def replay(*seeds: int, hash_seed: str) -> list[str]:
    """What the command gives that a failing life names."""
    command = [sys.executable, str(SUPPORT / "sim_server.py"), str(TICKS), *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(SUPPORT.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    return [line.split()[-1] for line in done.stdout.splitlines()]


def test_a_failing_life_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(server: SimServer) -> str:
        raise AssertionError(f"wrong in tick {server.tick}")

    monkeypatch.setattr(SimServer, "step", fail)
    with pytest.raises(AssertionError) as failure:
        live(7)
    notes = "\n".join(failure.value.__notes__)
    assert f"failed in tick {str(failure.value).split()[-1]} of 150" in notes
    assert "python tests/support/sim_server.py 150 7" in notes


@pytest.mark.deep
@pytest.mark.parametrize("part", range(4))
def test_many_lives(part: int, record_property: Any) -> None:
    events: Counter[str] = Counter()
    for seed in range(1_000_000 * (part + 1), 1_000_000 * (part + 1) + 400):
        events.update(live(seed).events)
    for seed in range(1_000_000 * (part + 1), 1_000_000 * (part + 1) + 40):
        events.update(live(seed, ticks=1000).events)
    operations = 400 * TICKS + 40 * 1000
    record_property("operations", operations)
    print(f"part {part}: {operations:,} ticks; " + ", ".join(f"{name} {count:,}" for name, count in sorted(events.items())))
