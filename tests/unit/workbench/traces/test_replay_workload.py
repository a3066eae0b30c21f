"""Runs of block ids, the built-in workload, and looking ahead."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_tree.controllers.workbench.runs.clairvoyance import NEVER, Foresight
from unified_tree.controllers.workbench.traces.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS, Request, cut_runs, expand_runs, pack_runs


@given(st.lists(st.integers(0, 12)), st.integers(0, 20))
def test_packing_and_cutting_lose_nothing(ids: list[int], count: int) -> None:
    runs = pack_runs(np.array(ids, np.int64))
    assert expand_runs(runs).tolist() == ids
    assert expand_runs(cut_runs(runs, count)).tolist() == ids[:count]


def request(index: int, ids: list[int]) -> Request:
    return Request(
        index=index,
        arrival_s=float(index),
        runs=pack_runs(np.array(ids, np.int64)),
        block_tokens=4,
        prompt_tokens=4 * len(ids) + 1,
        output_tokens=2,
    )


@given(st.lists(st.lists(st.integers(0, 9), unique=True, min_size=1), min_size=1, max_size=12), st.randoms())
def test_foresight_agrees_with_looking_through_the_list(id_lists: list[list[int]], rng: Random) -> None:
    foresight = Foresight([pack_runs(np.array(ids, np.int64)) for ids in id_lists], 10)
    to_come = list(range(len(id_lists)))
    if rng.random() < 0.5:
        rng.shuffle(to_come)  # they need not arrive in the order of their numbers
    while to_come:
        foresight.arrived(to_come.pop(0))
        for block in range(10):
            following = [i for i in sorted(to_come) if block in id_lists[i]]
            assert foresight.next_use(block) == (following[0] if following else NEVER)
    assert foresight.next_use(OWN_TOKENS + 3) == NEVER


def test_the_built_in_workload_is_the_same_for_the_same_seed() -> None:
    options = SyntheticOptions(request_count=200, seed=5)
    first, again = synthetic_workload(options), synthetic_workload(options)
    other = synthetic_workload(SyntheticOptions(request_count=200, seed=6))
    assert len(first.requests) == 200
    assert [r.prompt_tokens for r in first.requests] == [r.prompt_tokens for r in again.requests]
    assert all((a.runs == b.runs).all() for a, b in zip(first.requests, again.requests, strict=True))
    assert [r.prompt_tokens for r in first.requests] != [r.prompt_tokens for r in other.requests]


def test_the_built_in_workload_shares_branches_and_fans_out() -> None:
    workload = synthetic_workload(SyntheticOptions(request_count=400))
    assert all(int(r.runs[::2].max()) < workload.block_count for r in workload.requests)
    prefixes = {tuple(r.blocks()[:20].tolist()) for r in workload.requests}
    assert 2 < len(prefixes) < 40, "a few system prompts are shared by all"
    by_chain: dict[int, Any] = {}
    branched = 0
    for r in workload.requests:
        before = by_chain.get(r.chain)
        if before is not None:
            common = min(before.size, r.blocks().size)
            branched += not (before[:common] == r.blocks()[:common]).all()
        by_chain[r.chain] = r.blocks()
    assert 0.03 < branched / len(workload.requests) < 0.3


@pytest.mark.parametrize("count", [1, 3])
def test_the_built_in_workload_can_be_tiny(count: int) -> None:
    assert len(synthetic_workload(SyntheticOptions(request_count=count)).requests) == count
