"""The optimum: exact for paths, never exceeded for hybrids; both against every choice that there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from every_choice import Tiny, most_hits
from tiny_workloads import PAGE, bound, descent, drawn, idle_of

from unified_tree.controllers.workbench.optimum.descent import whole_tokens
from unified_tree.controllers.workbench.optimum.idle import Demand, Idle, most_path_hits

INSTANCES = int(os.environ.get("INSTANCES", "40"))


def demand_of(tiny: Tiny) -> Demand:
    pinned = idle_of(tiny).pinned if tiny.pins else 0
    return Demand(
        path_tokens=None if tiny.paths is None else (tiny.paths + tiny.host_paths) * PAGE - pinned,
        windows=() if tiny.windows is None else ((tiny.window * PAGE, (tiny.windows + tiny.host_windows) * PAGE),),
        states=() if tiny.states is None else (tiny.states + tiny.host_states,),
        grid=tiny.grid * PAGE,
    )


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_paths_are_exact(seed: int) -> None:
    rng = Random(seed)
    for _ in range(10):
        tiny = drawn(rng, paths=rng.randint(1, 5))
        assert tiny.paths is not None
        best = most_hits(tiny) * PAGE
        for block_tokens in (PAGE, PAGE // 2, 1):
            idle = idle_of(tiny, block_tokens)
            assert most_path_hits(idle, tiny.paths * PAGE).sum() == best, tiny
            assert most_path_hits(idle.fitting(tiny.paths * PAGE), tiny.paths * PAGE).sum() == best, tiny
            assert bound(idle, Demand(path_tokens=tiny.paths * PAGE)) >= best, tiny


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_no_choice_exceeds_the_bound_of_a_hybrid(seed: int) -> None:
    rng = Random(seed)
    for _ in range(4):
        has_windows = rng.random() < 0.6
        tiny = drawn(
            rng,
            paths=rng.choice([None, rng.randint(1, 4)]),
            windows=rng.randint(1, 3) if has_windows else None,
            window=rng.randint(1, 2),
            states=None if has_windows and rng.random() < 0.7 else rng.randint(1, 2),
            grid=rng.choice([1, 1, 2]),
        )
        best, found = most_hits(tiny) * PAGE, descent(idle_of(tiny), demand_of(tiny))
        assert best <= whole_tokens(found.bound), tiny
        assert whole_tokens(found.bound) <= most_path_hits(idle_of(tiny), 1 << 40).sum(), tiny
        assert found.depths.sum() <= whole_tokens(found.bound), tiny


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_what_does_not_fit_alone_is_left_out_and_no_more(seed: int) -> None:
    """Beside the tokens of each request counted one by one, in room that changes."""
    rng = Random(seed)
    for _ in range(20):
        idle = idle_of(drawn(rng, paths=1))
        room = np.array([rng.randint(-1, 3) * PAGE for _ in range(idle.count)], np.int64)
        fitting = idle.fitting(room)
        for owner in range(idle.count):
            runs = [run for run in range(idle.owner.size) if idle.owner[run] == owner]
            most = max((int(idle.end[run]) for run in runs), default=0)
            for depth in range(PAGE, most + 1, PAGE):
                kept = [
                    sum(
                        max(0, min(depth, int(idle.end[r])) - int(idle.begin[r])) for r in runs if idle.since[r] <= now <= owner
                    )
                    for now in range(owner + 1)
                ]
                fits = all(used <= max(0, left) for used, left in zip(kept, room[: owner + 1].tolist(), strict=True))
                assert fits == bool(((fitting.owner == owner) & (fitting.end >= depth)).any()), (seed, owner, depth)


@pytest.mark.parametrize("seed", range(INSTANCES))
def test_no_choice_on_two_tiers_exceeds_the_bound(seed: int) -> None:
    rng = Random(seed)
    for _ in range(4):
        tiny = two_tiers(rng)
        best, idle, demand = most_hits(tiny) * PAGE, idle_of(tiny), demand_of(tiny)
        assert best <= bound(idle, demand), tiny
        assert demand.path_tokens is not None
        assert best <= most_path_hits(idle, demand.path_tokens).sum(), tiny


def two_tiers(rng: Random) -> Tiny:
    """Requests that need their prompts on device while they run, and host memory for what is idle."""
    kind = rng.choice(["paths", "windows", "states"])
    return drawn(
        rng,
        paths=4,
        host_paths=rng.randint(0, 3),
        windows=rng.randint(1, 2) if kind == "windows" else None,
        host_windows=rng.randint(0, 2),
        window=rng.randint(1, 2),
        states=1 if kind == "states" else None,
        host_states=rng.randint(0, 1),
        pins=True,
    )


def changed(idle: Idle, **arrays: Any) -> Idle:
    for name, array in arrays.items():
        setattr(idle, name, array)
    return idle


DEFECTS: dict[str, Callable[[Idle, Demand], tuple[Idle, Demand]]] = {
    "since too early": lambda idle, demand: (changed(idle, since=np.maximum(0, idle.since - 1)), demand),
    "states saved too early": lambda idle, demand: (changed(idle, saved=np.maximum(0, idle.saved - 1)), demand),
    "parts of prompts forgotten": lambda idle, demand: (changed(idle, end=np.maximum(idle.begin, idle.end - PAGE)), demand),
    "paths that no request holds": lambda idle, demand: (
        idle,
        replace(demand, path_tokens=None if demand.path_tokens is None else demand.path_tokens - PAGE),
    ),
    "window too long": lambda idle, demand: (
        idle,
        replace(demand, windows=tuple((window + PAGE, room) for window, room in demand.windows)),
    ),
    "pools too small": lambda idle, demand: (
        idle,
        replace(
            demand,
            windows=tuple((window, room - PAGE) for window, room in demand.windows),
            states=tuple(max(0, room - 1) for room in demand.states),
        ),
    ),
    "grid too coarse": lambda idle, demand: (idle, replace(demand, grid=2 * demand.grid)),
    "fitted into too little": lambda idle, demand: (
        idle if demand.path_tokens is None else idle.fitting(demand.path_tokens - PAGE),
        demand,
    ),
}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_a_wrong_bound_is_noticed(defect: Callable[[Idle, Demand], tuple[Idle, Demand]]) -> None:
    """Each defect makes a bound that some choice exceeds, within the workloads that the tests above draw."""
    rng = Random(3)
    for _ in range(600):
        has_windows = rng.random() < 0.5
        tiny = drawn(
            rng,
            paths=rng.choice([None, rng.randint(1, 3)]),
            windows=rng.randint(1, 3) if has_windows else None,
            states=None if has_windows else rng.randint(1, 2),
        )
        idle, demand = defect(idle_of(tiny), demand_of(tiny))
        if most_hits(tiny) * PAGE > bound(idle, demand):
            return
    raise AssertionError("no choice exceeds the wrong bound")


@pytest.mark.parametrize("forgotten", [{"host_paths": 0, "host_windows": 0, "host_states": 0}, {"paths": 0}])
def test_a_wrong_bound_of_two_tiers_is_noticed(forgotten: dict[str, int]) -> None:
    rng = Random(5)
    drawn_ones = (two_tiers(rng) for _ in range(600))
    assert any(
        most_hits(tiny) * PAGE > bound(idle_of(tiny), demand_of(replace(tiny, **forgotten)))  # type: ignore[arg-type]
        for tiny in drawn_ones
    )


def test_what_a_running_request_pins_must_not_be_counted_twice() -> None:
    rng = Random(5)
    for _ in range(600):
        tiny = two_tiers(rng)
        idle, demand = idle_of(tiny), demand_of(tiny)
        assert demand.path_tokens is not None
        if most_hits(tiny) * PAGE > bound(idle, replace(demand, path_tokens=demand.path_tokens - idle.pinned)):
            return
    raise AssertionError("no choice exceeds the wrong bound")
