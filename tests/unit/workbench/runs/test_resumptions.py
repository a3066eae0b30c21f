"""Where a planned workload saves: where later requests resume, and no earlier than need be."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from unified_tree.controllers.workbench.runs.clairvoyance import Resumptions
from unified_tree.controllers.workbench.traces.workload import Request, Workload

BLOCK = 4


def workload_of(*prompts: list[int]) -> Workload:
    """Requests for these blocks, in order."""
    requests = tuple(
        Request(
            index=index,
            arrival_s=float(index),
            runs=np.array([part for block in blocks for part in (block, 1)], np.int64),
            block_tokens=BLOCK,
            prompt_tokens=len(blocks) * BLOCK + 1,
            output_tokens=1,
        )
        for index, blocks in enumerate(prompts)
    )
    return Workload(name="made", requests=requests, block_count=1000)


def saved(workload: Workload, plan: Resumptions) -> list[tuple[int, ...] | None]:
    return [request.checkpoints for request in plan.saves(workload).with_checkpoints(workload).requests]


@pytest.mark.parametrize(
    ("depths", "checkpoints", "needed"),
    [
        ((0, 0, 0), [(), (), ()], [[], [], []]),
        ((0, 4, 8), [(4,), (8,), ()], [[], [4], [8]]),  # the second computes the second block again, and saves there
        ((0, 0, 8), [(), (8,), ()], [[], [], [8]]),
        ((0, 8, 8), [(8,), (8,), ()], [[], [8], [8]]),  # the second saves it if it does not find it
        ((0, 8, 4), [(4, 8), (4,), ()], [[], [4, 8], [4]]),  # the second passes by what the third needs
        ((0, 6, 6), [(6,), (6,), ()], [[], [6], [6]]),
        ((0, 6, 8), [(6,), (8,), ()], [[], [6], [8]]),
        ((0, 8, 6), [(6, 8), (6,), ()], [[], [6, 8], [6]]),
    ],
)
def test_a_request_saves_what_the_next_one_cannot(
    depths: tuple[int, ...], checkpoints: list[tuple[int, ...]], needed: list[list[int]]
) -> None:
    workload = workload_of([0, 1], [0, 1, 2], [0, 1, 3])
    plan = Resumptions(order=np.arange(3), depths=np.array(depths))
    assert saved(workload, plan) == checkpoints
    assert [plan.saves(workload).needed[index] for index in range(3)] == needed


def test_what_is_computed_again_before_it_is_needed_is_not_saved_before() -> None:
    """The second passes it by, and the third computes all: it is there for the fourth whether or not the first saved it."""
    workload = workload_of([0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 4])
    plan = Resumptions(order=np.arange(4), depths=np.array([0, 8, 0, 4]))
    assert saved(workload, plan) == [(8,), (), (4,), ()]
    assert plan.saves(workload).needed == {0: [], 1: [8], 2: [], 3: [4]}


def test_the_order_of_admissions_counts() -> None:
    workload = workload_of([0, 1], [0, 1, 2], [0, 1, 3])
    plan = Resumptions(order=np.array([2, 0, 1]), depths=np.array([4, 8, 0]))
    assert saved(workload, plan) == [(8,), (), (4,)]


def test_other_texts_do_not_count() -> None:
    workload = workload_of([0, 1], [4, 5], [0, 1, 3])
    plan = Resumptions(order=np.arange(3), depths=np.array([0, 0, 8]))
    assert saved(workload, plan) == [(8,), (), ()]


def test_needs_are_those_of_the_last_request_to_compute_them() -> None:
    """Random plans beside a look back from each request that resumes, text by text."""
    for seed in range(300):
        rng = Random(seed)
        prompts: list[list[int]] = []
        for _ in range(rng.randint(2, 8)):
            base = rng.choice(prompts) if prompts else []
            base = base[: rng.randint(0, len(base))]
            prompts.append([*base, *range(100 * len(prompts), 100 * len(prompts) + rng.randint(0 if base else 1, 3))])
        workload = workload_of(*prompts)
        depths = []
        for at, prompt in enumerate(prompts):
            known = max((common(prompt, earlier) for earlier in prompts[:at]), default=0) * BLOCK
            depths.append(rng.randint(0, known))
        needed: list[set[int]] = [set() for _ in prompts]
        wanted: list[set[int]] = [set() for _ in prompts]
        for at, (prompt, depth) in enumerate(zip(prompts, depths, strict=True)):
            if not depth:
                continue
            needed[at].add(depth)
            for before in range(at - 1, -1, -1):
                if common(prompt, prompts[before]) * BLOCK >= depth:
                    wanted[before].add(depth)
                    if depths[before] < depth:
                        break  # it computes that place
                    needed[before].add(depth)
        saves = Resumptions(order=np.arange(len(prompts)), depths=np.array(depths)).saves(workload)
        assert [set(saves.needed[at]) for at in range(len(prompts))] == needed, seed
        assert [set(saves.saved[at]) for at in range(len(prompts))] == wanted, seed


def common(prompt: list[int], other: list[int]) -> int:
    """How many blocks two prompts begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), min(len(prompt), len(other)))
