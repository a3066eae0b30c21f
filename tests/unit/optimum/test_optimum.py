"""The optimum: exact for paths, never exceeded for hybrids; both against every choice that there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from every_choice import Tiny, most_hits

from unified_tree.controllers.optimum.demand import Demand
from unified_tree.controllers.optimum.idle import Asked, Idle
from unified_tree.controllers.optimum.paths import most_path_hits
from unified_tree.controllers.optimum.prices import Prices

INSTANCES = int(os.environ.get("INSTANCES", "40"))
PAGE = 4


def drawn(rng: Random, **pools: int | None) -> Tiny:
    """Prompts that branch off each other, and come again."""
    prompts: list[tuple[tuple[int, ...], bool]] = []
    for _ in range(rng.randint(2, 6)):
        base = rng.choice(prompts)[0] if prompts and rng.random() < 0.8 else ()
        base = base[: rng.randint(0, len(base))]
        longer = tuple(rng.randint(0, 2) for _ in range(rng.randint(0, 2)))
        prompt = (base + longer)[:4] or (0,)
        prompts.append((prompt, rng.random() < 0.7))
    return Tiny(tuple(prompts), **pools)  # type: ignore[arg-type]


def idle_of(tiny: Tiny, block_tokens: int = PAGE) -> Idle:
    """The same prompts in tokens; a page is one block, or several."""
    ids: dict[tuple[int, ...], int] = {}
    per_page = PAGE // block_tokens

    def asked() -> Iterable[Asked]:
        for at, (prompt, has_more) in enumerate(tiny.prompts):
            pages = [ids.setdefault(prompt[:length], len(ids)) for length in range(1, len(prompt) + 1)]
            blocks = np.array([page * per_page + part for page in pages for part in range(per_page)], np.int64)
            tokens = len(prompt) * PAGE + (rng.randint(1, PAGE - 1) if has_more else 0)
            yield Asked(blocks=blocks, block_tokens=block_tokens, prompt_tokens=tokens, prompt_done=at + 1, done=at + 1)

    rng = Random(0)
    return Idle(asked(), 100, PAGE)


def demand_of(tiny: Tiny) -> Demand:
    return Demand(
        path_tokens=None if tiny.paths is None else tiny.paths * PAGE,
        windows=() if tiny.windows is None else ((tiny.window * PAGE, tiny.windows * PAGE),),
        states=() if tiny.states is None else (tiny.states,),
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
            assert Prices(idle, Demand(path_tokens=tiny.paths * PAGE)).bound() >= best, tiny


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
        best, bound = most_hits(tiny) * PAGE, Prices(idle_of(tiny), demand_of(tiny)).bound()
        assert best <= bound, tiny
        assert bound <= most_path_hits(idle_of(tiny), 1 << 40).sum(), tiny


def since_too_early(idle: Idle, demand: Demand) -> tuple[Idle, Demand]:
    idle.since = np.maximum(0, idle.since - 1)
    return idle, demand


def parts_of_prompts_forgotten(idle: Idle, demand: Demand) -> tuple[Idle, Demand]:
    idle.end = np.maximum(idle.begin, idle.end - PAGE)
    return idle, demand


def paths_held_by_nobody(idle: Idle, demand: Demand) -> tuple[Idle, Demand]:
    return idle, replace(demand, path_tokens=None if demand.path_tokens is None else demand.path_tokens - PAGE)


def window_too_long(idle: Idle, demand: Demand) -> tuple[Idle, Demand]:
    return idle, replace(demand, windows=tuple((window + PAGE, room) for window, room in demand.windows))


def pools_too_small(idle: Idle, demand: Demand) -> tuple[Idle, Demand]:
    windows = tuple((window, room - PAGE) for window, room in demand.windows)
    return idle, replace(demand, windows=windows, states=tuple(max(0, room - 1) for room in demand.states))


def grid_too_coarse(idle: Idle, demand: Demand) -> tuple[Idle, Demand]:
    return idle, replace(demand, grid=2 * demand.grid)


@pytest.mark.parametrize(
    "defect",
    [since_too_early, parts_of_prompts_forgotten, paths_held_by_nobody, window_too_long, pools_too_small, grid_too_coarse],
)
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
        if most_hits(tiny) * PAGE > Prices(idle, demand).bound():
            return
    raise AssertionError("no choice exceeds the wrong bound")
