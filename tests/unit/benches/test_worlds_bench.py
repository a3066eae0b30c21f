"""The bench of random worlds: a world is its seed's, all kinds are drawn, and rows are kept."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benches.world import FAMILIES, MODELS, SIZES, World, tokens_held
from benches.worlds import in_turn, main, measured, seeds_of
from unified_tree.components.models import BUILT_IN
from unified_tree.controllers.workbench.traces.workload import Workload


def tiny(seed: int, requests: int = 40) -> World:
    return replace(World.of(seed), request_count=requests)


def test_a_world_is_the_same_in_another_process() -> None:
    tasks = [(tiny(4), ["lru"]), (tiny(9), ["lru"])]
    here, there = ([row for rows in in_turn(tasks, jobs, is_bounded=False) for row in rows] for jobs in (1, 2))
    assert [row | {"processor_s": 0} for row in here] == [row | {"processor_s": 0} for row in there]


def test_all_kinds_are_drawn_on_either_half_of_the_seeds() -> None:
    halves = [[World.of(seed) for seed in seeds_of(text)] for text in ("0-149", "150-299")]
    assert [len(half) for half in halves] == [150, 150]
    for worlds in halves:
        assert Counter(world.family for world in worlds) == dict.fromkeys(FAMILIES, 15)
        assert {world.model for world in worlds} == set(MODELS)
        assert {world.size for world in worlds} == set(SIZES)
        assert {world.scarce for world in worlds} == {"nothing", "paths", "windows or states", "both", "one budget"}
        assert {world.concurrency for world in worlds} == {1, 4, 32}
        assert {world.host_share is None for world in worlds} == {True, False}
        assert {world.has_draft for world in worlds} == {True, False}
    assert set(MODELS) <= set(BUILT_IN) and len(MODELS) == 13


@pytest.mark.parametrize("seed", range(len(FAMILIES)))
def test_requests_of_each_kind_are_valid(seed: int) -> None:
    workload = tiny(seed, 120).workload()
    assert [request.index for request in workload.requests] == list(range(120))
    assert np.all(np.diff([request.arrival_s for request in workload.requests]) >= 0)
    before: dict[int, int] = {}  # a block's name stands for all before it
    for request in workload.requests:
        blocks = request.blocks()
        assert all(before.setdefault(block, last) == last for last, block in pairwise([-1, *blocks.tolist()]))
        assert blocks.max() < workload.block_count and np.unique(blocks).size == blocks.size
        assert 0 <= request.prompt_tokens - request.shared_tokens < request.block_tokens
        assert all(0 < at <= request.prompt_tokens for at in request.save_points)


def test_a_text_that_is_shared_is_held_once() -> None:
    requests = tiny(0).workload().requests
    twice = Workload(name="", requests=(requests[0], requests[0]), block_count=1 << 20)
    own_tokens = requests[0].prompt_tokens - requests[0].shared_tokens + requests[0].output_tokens
    assert tokens_held(twice) == requests[0].shared_tokens + 2 * own_tokens


def test_a_world_hits_no_more_than_its_bound() -> None:
    row, unbounded = measured(tiny(0), ["lru", "unbounded"], is_bounded=True)
    assert 0 < row["hit_tokens"] <= row["bound_tokens"]
    assert row["hit_tokens"] <= unbounded["hit_tokens"] and row["rejected"] == 0


def test_two_worlds_are_replayed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["--seeds", "2-3", "--requests", "40", "--jobs", "1", "--bound", "--json", str(file)]
    assert main([*arguments, "--policies", "lru"]) == 0
    (first,) = [row for row in map(json.loads, file.read_text().splitlines()) if row["seed"] == 2]
    file.write_text("".join(json.dumps(row | {"hit_tokens": 0}) + "\n" for row in [first]))
    policies = ["--policies", "lru,unified_tree.policies.table:CostAware"]
    assert main(arguments + policies) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["seed"], row["policy"]) for row in rows] == [
        (2, "lru"),  # as the file had it
        (2, "unified_tree.policies.table:CostAware"),
        (3, "lru"),
        (3, "unified_tree.policies.table:CostAware"),
    ]
    printed = capsys.readouterr().out
    assert "| 2 | agents | qwen3-32b | paths |" in printed
    assert "`unified_tree.policies.table:CostAware` beside `lru`" in printed
    assert "certified bound" in printed


def test_a_world_may_have_several_times_as_many_requests(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    options = ["--seeds", "2", "--requests", "20", "--times", "3", "--jobs", "1", "--policies", "lru", "--json", str(file)]
    assert main(options) == 0
    assert json.loads(file.read_text())["request_count"] == 60
