"""Where a planned workload saves: where later requests resume, and no earlier than need be."""

from __future__ import annotations

import numpy as np
import pytest

from unified_tree.controllers.replay.resumptions import Resumptions
from unified_tree.controllers.replay.workload import Request, Workload

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
    return Workload(name="made", requests=requests, block_count=10)


@pytest.mark.parametrize(
    ("depths", "saved"),
    [
        ((0, 0, 0), ((), (), ())),
        ((0, 4, 8), ((4,), (8,), ())),  # the second computes the second block again, and saves there
        ((0, 0, 8), ((), (8,), ())),
        ((0, 8, 8), ((8,), (8,), ())),
        ((0, 8, 4), ((4, 8), (4,), ())),  # the second does not compute the first block, and the third needs it
        ((0, 6, 6), ((6,), (6,), ())),
    ],
)
def test_a_request_saves_what_the_next_one_cannot(depths: tuple[int, ...], saved: tuple[tuple[int, ...], ...]) -> None:
    workload = workload_of([0, 1], [0, 1, 2], [0, 1, 3])
    plan = Resumptions(order=np.arange(3), depths=np.array(depths))
    assert tuple(request.checkpoints for request in plan.with_checkpoints(workload).requests) == saved


def test_the_order_of_admissions_counts() -> None:
    workload = workload_of([0, 1], [0, 1, 2], [0, 1, 3])
    plan = Resumptions(order=np.array([2, 0, 1]), depths=np.array([4, 8, 0]))
    assert [request.checkpoints for request in plan.with_checkpoints(workload).requests] == [(8,), (), (4,)]


def test_other_texts_do_not_count() -> None:
    workload = workload_of([0, 1], [4, 5], [0, 1, 3])
    plan = Resumptions(order=np.arange(3), depths=np.array([0, 0, 8]))
    assert [request.checkpoints for request in plan.with_checkpoints(workload).requests] == [(8,), (), ()]
