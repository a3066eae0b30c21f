"""The model of a cache, where the curve is known exactly."""

from __future__ import annotations

import random

import numpy as np
import pytest

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.sizing.model_cache import CHUNK, WHOLE, ModelCache, ValueOrder
from unified_tree.controllers.workbench.sizing.needs import Needs

PAGE = 64
PROMPTS, UNITS = 5, 10
"""So many prompts take turns, each of so many pages and one token more."""


def needs_of(model: str) -> Needs:
    composition = composition_for(model)
    return Needs.of(composition.components, composition.page_size, 8192)


def cyclic(cache: ModelCache, rounds: int = 4) -> ModelCache:
    for _ in range(rounds):
        for prompt in range(PROMPTS):
            ids = np.arange(prompt * UNITS, (prompt + 1) * UNITS)
            held = cache.begin(ids, PAGE, UNITS * PAGE + 1, 0)
            cache.compute(held)
            cache.end(held)
    return cache


@pytest.mark.parametrize("room", [PROMPTS * UNITS * PAGE, None])
def test_prompts_that_take_turns_all_hit_where_all_fit(room: int | None) -> None:
    cache = cyclic(ModelCache(room, needs_of("qwen3-32b"), PROMPTS * UNITS))
    assert cache.hits.curve().tokens(0) == 3 * PROMPTS * UNITS * PAGE


def test_and_with_a_page_less_lru_hits_but_what_eviction_left_of_the_ends() -> None:
    full = needs_of("qwen3-32b")
    cache = cyclic(ModelCache((PROMPTS * UNITS - 1) * PAGE, full, PROMPTS * UNITS))
    assert cache.hits.curve().tokens(0) == 3 * PROMPTS * UNITS * PAGE - 3 * PROMPTS * PAGE
    half = cyclic(ModelCache((PROMPTS - 1) * UNITS * PAGE, full, PROMPTS * UNITS))
    assert half.hits.curve().tokens(0) == 0


@pytest.mark.parametrize(("model", "value"), [("gemma-3-27b", UNITS * PAGE / 1024), ("qwen3-next-80b-a3b", 1.0)])
def test_one_pass_knows_the_hits_for_every_room_for_windows_and_states(model: str, value: float) -> None:
    """A prompt shorter than the window takes a part of one."""
    curve = cyclic(ModelCache(None, needs_of(model), PROMPTS * UNITS)).hits.curve()
    least = PROMPTS * value
    assert curve.tokens(least - 0.01) == 0
    assert curve.tokens(least) == curve.tokens(100) == 3 * PROMPTS * UNITS * PAGE


def test_windows_that_can_be_rebuilt_cost_their_rebuild() -> None:
    needs = needs_of("gpt-oss-20b")
    assert needs.rebuild_tokens is not None
    units = 100
    cache = ModelCache(None, needs, units)
    for _ in range(2):
        held = cache.begin(np.arange(units), PAGE, units * PAGE + 1, 0)
        cache.compute(held)
        cache.end(held)
    curve = cache.hits.curve()
    assert curve.tokens(0) == units * PAGE - needs.rebuild_tokens
    assert curve.tokens(1) == units * PAGE


def test_what_is_running_is_not_evicted_and_nothing_is_lost_from_the_sums() -> None:
    draw = random.Random(1)
    room = 40 * PAGE
    for model in ("qwen3-32b", "gemma-3-27b", "qwen3-next-80b-a3b"):
        cache = ModelCache(room, needs_of(model), 300)
        running = []
        for _ in range(500):
            first = draw.randrange(6) * 50
            ids = np.concatenate(
                [np.arange(first, first + draw.randrange(1, 9)), np.arange(first + 10, first + 10 + draw.randrange(5))]
            )
            held = cache.begin(ids, PAGE, ids.size * PAGE + draw.randrange(1, 200), draw.randrange(200))
            cache.compute(held)
            running.append(held)
            if len(running) == 3:
                cache.end(running.pop(draw.randrange(3)))
            held_ids = {int(unit) for held in running for unit in held.ids}
            assert cache.missing_tokens(np.array(sorted(held_ids)), PAGE) == 0
            assert all(cache.known(np.array([unit])) == 1 for unit in held_ids)
        for held in running:
            cache.end(held)
        assert cache.pinned_tokens == 0


def test_distances_are_the_weights_of_what_is_more_recent() -> None:
    draw = random.Random(2)
    order, kept = ValueOrder(), dict[int, int]()
    for step in range(3 * CHUNK):
        if kept and draw.random() < 0.4:
            gone = draw.choice(list(kept))
            del kept[gone]
            order.remove(gone)
        else:
            weight = draw.randrange(1, WHOLE + 1)
            kept[order.add(weight)] = weight
        if step % 500 == 0:
            renumbered = order.compact()
            kept = {int(renumbered[time]): weight for time, weight in kept.items()}
        time = draw.choice(list(kept)) if kept else 0
        assert order.above(time) == sum(weight for other, weight in kept.items() if other > time)
