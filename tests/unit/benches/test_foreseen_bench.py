"""The bench of what can be foreseen: its two ways to simulate agree, its best is the best, and it finds what was planted."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benches import cell, foreseen
from benches.foreseen import least_parts, line, main
from benches.foreseen_orders import Order, hit_by_order, hit_by_tree, hit_tokens, most_possible
from benches.foreseen_uses import AGE_BOUNDS_S, UNIT_TOKENS, Prompt, foreseen_chances, learned_chances, uses_of, worth
from benches.memory import PARTS


def prompt(at_s: float, units: tuple[int, ...]) -> Prompt:
    """With a rest that is no whole unit, so that all of its units can be hit."""
    return Prompt(at_s, len(units) * UNIT_TOKENS + 1, 10, np.array(units, np.int64))


def random_prompts(draw: Random, count: int, trees: int, longest: int) -> list[Prompt]:
    """Paths through small trees: the name of a unit is that of all up to its end."""
    prompts, names = [], dict[tuple[int, ...], int]()
    for i in range(count):
        path = (draw.randrange(trees), *(draw.randrange(2) for _ in range(draw.randrange(longest))))
        units = tuple(names.setdefault(path[: end + 1], len(names)) for end in range(len(path)))
        prompts.append(prompt(float(i), units))
    return prompts


@pytest.mark.parametrize("seed", range(20))
def test_recency_hits_what_the_tree_hits_with_lru(seed: int) -> None:
    draw = Random(seed)
    prompts = random_prompts(draw, 300, trees=draw.randrange(1, 12), longest=draw.randrange(1, 9))
    uses = uses_of(prompts)
    for capacity in (1, 7, 20, 60):
        assert hit_by_order(prompts, capacity, Order(uses, None)) == hit_by_tree(prompts, capacity, "lru")


def best_by_trying(prompts: list[Prompt], capacity: int) -> float:
    """Each way to keep, tried: any units whose ancestors stay, for the next request to find."""
    names = [tuple(each.units.tolist()) for each in prompts]
    above = {unit: path[at - 1] if at else None for path in names for at, unit in enumerate(path)}

    @cache
    def most(i: int, held: frozenset[int]) -> int:
        if i == len(prompts):
            return 0
        path = names[i]
        hit = hit_tokens(prompts[i], next((at for at, unit in enumerate(path) if unit not in held), len(path)))
        there = sorted(held | set(path))
        kept = (frozenset(each) for size in range(min(capacity, len(there)) + 1) for each in combinations(there, size))
        return hit + max(most(i + 1, each) for each in kept if all(above[unit] is None or above[unit] in each for unit in each))

    return most(0, frozenset()) / sum(each.prompt_tokens for each in prompts)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_possible_is_what_trying_all_finds(seed: int) -> None:
    draw = Random(seed)
    prompts = random_prompts(draw, 8, trees=draw.randrange(1, 4), longest=2)
    capacity = draw.randrange(2, 5)
    assert most_possible(prompts, capacity) == pytest.approx(best_by_trying(prompts, capacity))


def test_a_use_is_described_by_what_was_before() -> None:
    prompts = [prompt(0.0, (0, 1)), prompt(8.0, (0, 1, 2)), prompt(20.0, (0, 9)), prompt(24.0, (0, 1, 2, 3))]
    uses = uses_of(prompts)
    assert uses.next_request.tolist() == [1, 1, 2, 3, 3, 3, -1, -1, -1, -1, -1]
    turns, gaps, before = (uses.known[uses.first[1:] - 1, i].tolist() for i in (0, 4, 5))
    assert (turns, gaps, before) == ([0, 1, 2, 2], [-1, 8, 12, 16], [-1, -1, 8, 8])
    assert uses.session.tolist() == [0, 0, 0, 0]


def test_what_is_learned_knows_nothing_that_comes_later() -> None:
    """Up to a request it is the same, whatever the rest of the trace is."""
    draw = Random(7)
    prompts = random_prompts(draw, 300, trees=20, longest=4)
    other = prompts[:200] + [prompt(each.arrival_s, (9_000 + i,)) for i, each in enumerate(prompts[200:])]
    first, second = (learned_chances(uses_of(each), every=50) for each in (prompts, other))
    known = uses_of(prompts).first[200]
    assert np.array_equal(first[:known], second[:known]) and first[:known].any()


def test_what_comes_back_for_sure_is_worth_most_shortly_before() -> None:
    chance = np.zeros((2, AGE_BOUNDS_S.size - 1), np.float32)
    chance[0, 12] = 1.0
    found = worth(chance)
    assert np.all(np.diff(found[0, :13]) > 0) and not found[0, 13:].any()
    assert not found[1].any()


def test_a_planted_law_is_foreseen() -> None:
    """Long prompts come back after a minute, short ones never: recency cannot tell them apart, and the fit can."""
    draw, prompts = Random(1), []
    for i in range(400):
        is_long = i % 4 == 0
        units = tuple(range(100 * i, 100 * i + (6 if is_long else 3)))
        prompts.append(prompt(float(i), units))
        if is_long:
            prompts.append(prompt(i + 60.0 + draw.random(), (*units, 100 * i + 50)))
    prompts.sort()
    uses, capacity = uses_of(prompts), 120
    best = most_possible(prompts, capacity)
    foreseen = hit_by_order(prompts, capacity, Order(uses, worth(foreseen_chances(uses))))
    learned = hit_by_order(prompts, capacity, Order(uses, worth(learned_chances(uses, every=100))))
    assert hit_by_tree(prompts, capacity, "lru") < 0.01
    assert 0.5 * best < learned < foreseen <= best
    assert foreseen > 0.8 * best


@pytest.mark.parametrize("enough", range(1, PARTS + 1))
def test_the_least_that_is_enough_is_found(enough: int) -> None:
    assert least_parts(0.4, lambda parts: 0.4 if parts >= enough else 0.39) == enough


def test_no_share_is_known_where_less_or_nothing_is_hit() -> None:
    assert least_parts(0.4, lambda _: 0.39) is None
    assert least_parts(0.0, lambda _: 0.2) is None


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cell.WORKLOADS, "built-in agents", ("--requests", "80"))
    monkeypatch.setitem(foreseen.TOKENS, "built-in agents", (100_000,))
    assert main([str(tmp_path), "--only", "built-in agents", "--json", str(tmp_path / "rows.json")]) == 0
    assert "| built-in agents | 100,000 |" in capsys.readouterr().out
    assert (tmp_path / "rows.json").exists()


def test_a_sweep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cell.WORKLOADS, "built-in agents", ("--requests", "20"))
    monkeypatch.setitem(foreseen.TOKENS, "built-in agents", (512 << 12, 512 << 12))
    assert main([str(tmp_path), "--only", "built-in agents", "--sweep", "--json", str(tmp_path / "rows.json")]) == 0
    (swept,) = json.loads((tmp_path / "rows.json").read_text())
    assert len(swept["tokens"]) == len(swept["more"]) == foreseen.SWEPT
    row = capsys.readouterr().out.splitlines()[-1]  # all fits
    assert row == "| built-in agents | 1,048,576 to 4,194,304 | +0.00 | +0.00 | +0.00 | 0 |"


def test_a_line_of_a_sweep_says_how_often_it_is_less() -> None:
    row = {"workload": "w", "tokens": [512, 1024, 2048], "more": [-0.5, -0.3, 2.0]}
    assert foreseen.swept_line(row) == "| w | 512 to 2,048 | +0.40 | -0.50 | +2.00 | 1 |"


def test_a_line_says_what_is_needed() -> None:
    row = {"workload": "w", "tokens": 1000, "lru": 0.1, "density": 0.2, "foreseen": 0.21, "best": 0.5, "density_needs": 8}
    shown = line(row | {"learned": 0.19, "foreseen_needs": None})
    assert shown == "| w | 1,000 | 10.0 | 20.0 | 19.0 | 21.0 | 50.0 | 50 % |  |"
